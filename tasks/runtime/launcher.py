"""Runs a rank program on all ranks of this host, and leaves nothing behind."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dynolab.errors import ConfigError, RankFailed
from tasks.runtime.processes import Process, kill_marked, last_lines, start_child, stop_group

_GRACE_SECONDS = 10.0
_JOB_VARIABLE = "DYNOLAB_JOB"
# A rank knows no service, and must not take an outer job's place in a process group for its own.
_HIDDEN_PREFIXES = ("AWS_", "MLFLOW_", "PREFECT_", "TORCHELASTIC_", "PET_")
_HIDDEN = frozenset(
    ["MASTER_ADDR", "MASTER_PORT"]
    + [f"{scope}RANK" for scope in ("", "LOCAL_", "GROUP_", "ROLE_")]
    + [f"{scope}WORLD_SIZE" for scope in ("", "LOCAL_", "GROUP_", "ROLE_")]
)


def launch_ranks(
    module: str,
    job: Path,
    *,
    ranks: int,
    logs: Path,
    environment: Mapping[str, str],
    while_running: Callable[[], None],
    poll_seconds: float = 0.2,
) -> None:
    """Run `python -m module job` on `ranks` ranks under torchrun and wait for their end.

    **Arguments**

    - `logs`: folder for `rank-<n>.log` (stdout and stderr of a rank) and `torchrun.log`.
    - `environment`: variables for the ranks, over this process's own (without its credentials
      for services, which ranks do not use).
    - `while_running`: called in this thread every `poll_seconds`, and once after the ranks ended.

    **Raises** `RankFailed` where a rank did not end with exit code 0: it names the rank that
    failed first, not those that failed or were ended because of it. `ConfigError` for an
    impossible number of ranks. Whatever is raised, and if this process is killed, no rank,
    helper process, port or build lock stays.
    """
    if ranks < 1:
        raise ConfigError("ranks", ranks, "choose 1 or more")
    logs = logs.resolve()
    logs.mkdir(parents=True, exist_ok=True)
    # Beside the job, so that what a killed supervisor leaves lies in its work folder.
    job = job.resolve()
    with tempfile.TemporaryDirectory(prefix="dynolab-ranks-", dir=job.parent) as folder:
        failures = Path(folder)
        job_id = uuid.uuid4().hex
        try:
            agent = start_child(
                "tasks.runtime.agent",
                [str(ranks), str(logs), str(failures), module, str(job)],
                environment=_rank_environment(environment, ranks, failures, job_id),
                log=logs / "torchrun.log",
            )
            try:
                _watch(agent, while_running, poll_seconds)
            finally:
                stop_group(agent, _GRACE_SECONDS)
        finally:
            kill_marked(f"{_JOB_VARIABLE}={job_id}")
        if agent.returncode != 0:
            raise _first_failure(agent.returncode, failures, logs)


def _watch(agent: Process, while_running: Callable[[], None], poll_seconds: float) -> None:
    while True:
        with suppress(subprocess.TimeoutExpired):
            agent.wait(poll_seconds)
        ended = agent.poll() is not None
        while_running()
        if ended:
            return


def _rank_environment(
    additions: Mapping[str, str], ranks: int, private: Path, job_id: str
) -> dict[str, str]:
    """This process's environment without services, with the settings of DeepSpeed's processes."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in _HIDDEN and not name.startswith(_HIDDEN_PREFIXES)
    }
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    defaults = {
        "OMP_NUM_THREADS": str(max(1, (cores or 1) // ranks)),
        # A killed build leaves a lock on which later jobs hang silently: nothing is shared.
        "TORCH_EXTENSIONS_DIR": str(private / "torch_extensions"),
    }
    environment = {**inherited, **defaults, **additions, _JOB_VARIABLE: job_id}
    if "DS_ACCELERATOR" not in environment and not gpus_visible(environment):
        environment["DS_ACCELERATOR"] = "cpu"
    return environment


def gpus_visible(environment: Mapping[str, str]) -> bool:
    """Whether ranks with this environment can use a GPU; decided without importing torch."""
    with suppress(importlib.metadata.PackageNotFoundError):
        if importlib.metadata.version("torch").endswith("+cpu"):
            return False
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None and chosen.strip() in ("", "-1"):
        return False
    devices = Path("/dev")
    return any(devices.glob("nvidia[0-9]*")) or (devices / "kfd").exists()


def _first_failure(agent_code: int, failures: Path, logs: Path) -> RankFailed:
    """The failure that came first, from torchrun's list of ends and the ranks' own records.

    A rank that ended without a record (killed, crashed, `os._exit`) ran no Python any more and
    is a cause; recorded exceptions, which may follow from it, come next by time; last those that
    torchrun ended (SIGTERM, later SIGKILL) or a communication library aborted (SIGABRT).
    """
    ends = {int(rank): end for rank, end in _read(failures / "torchrun.json").items()}
    records = {int(file.stem[5:]): _read(file) for file in failures.glob("rank-*.json")}
    codes = {rank: code for rank, (code, _) in ends.items()}
    codes |= {rank: record["exit_code"] for rank, record in records.items() if record}
    first_second = min((second for _, second in ends.values()), default=0)

    def order(rank: int) -> tuple[int, int, int]:
        if records.get(rank):
            return 1, records[rank]["time_ns"], rank
        code, second = ends[rank]
        was_ended = code in (-signal.SIGTERM, -signal.SIGABRT) or second > first_second + 1
        return (2 if was_ended else 0), second, rank

    if not codes:
        return RankFailed(None, agent_code, last_lines(logs / "torchrun.log"))
    first = min(codes, key=order)
    reason = records.get(first, {}).get("reason")
    return RankFailed(first, codes[first], last_lines(logs / f"rank-{first}.log"), reason)


def _read(file: Path) -> dict[str, Any]:
    """A small JSON object; empty where its writer was killed before it was complete."""
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return content
