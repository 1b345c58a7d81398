"""Runs a rank program on all ranks of a job and leaves no process, port or lock behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from dynolab.errors import ConfigError, RankFailed
from dynolab.store import library_versions
from dynolab.store.claim import this_process
from tasks.runtime.launch.devices import (
    VISIBLE,
    gpu_lent_to_ranks,
    gpus_visible,
    hold_devices,
    host_devices,
)
from tasks.runtime.launch.rank_entry import Program
from tasks.runtime.system.computing import COMPUTING
from tasks.runtime.system.processes import kill_marked, last_lines, start_child, stop_group

JOB_VARIABLE = "DYNOLAB_JOB"
"""Set there, too: the job's random id, by which what is left of it is found and killed."""

OWNER_VARIABLE = "DYNOLAB_OWNER"
"""Set in the environment of ranks and their children: their supervisor's identity, as JSON."""

# Ranks compute on local files. They inherit only the variables that computing needs, so that they
# see no service's secret and no process-group variable (RANK, ...) of an outer job.
_INHERITED = re.compile(
    r"""
    PATH|HOME|USER|LOGNAME|SHELL|TZ|LANG|LANGUAGE|LC_.*|TMPDIR|TMP|TEMP|XDG_CACHE_HOME|VIRTUAL_ENV
    |PYTHON.*|LD_LIBRARY_PATH|LD_PRELOAD|MALLOC_.*
    |CC|CXX|CPATH|LIBRARY_PATH|MAX_JOBS  # DeepSpeed compiles kernels
    |(OMP|GOMP|KMP|MKL|OPENBLAS|ATEN|THP)_.*
    |(TORCH|PYTORCH|TORCHINDUCTOR|TRITON|DS|DEEPSPEED)_.*
    |(CUDA|CUBLAS|CUDNN|NVIDIA|NVTE|ROCM|ROCR|HIP|HSA)_.*
    |(NCCL|RCCL|GLOO|UCX|FI)_.*
    |HF_(HOME|HUB_CACHE|DATASETS_CACHE|MODULES_CACHE|HUB_OFFLINE|DATASETS_OFFLINE)
    |TRANSFORMERS_(OFFLINE|VERBOSITY)|TOKENIZERS_PARALLELISM
    |DYNOLAB_(HOME|MODULES|GRACE_SECONDS)
    |DYNOLAB_(UP|TEST|TEST_HOST)  # marks for finding processes
    """,
    re.VERBOSE,
)


def ranks_per_host(field: str, ranks: int, hosts: int) -> int:
    """Ranks of each host; raises ConfigError, naming `field`, if they cannot be shared evenly."""
    if ranks < 1:
        raise ConfigError(field, ranks, "choose 1 or more")
    if ranks % hosts:
        raise ConfigError(
            field,
            ranks,
            f"must be a multiple of DYNOLAB_HOSTS = {hosts}: every host runs the same number",
        )
    return ranks // hosts


def launch_ranks(
    module: str,
    job: Path,
    *,
    ranks: int,
    logs: Path,
    environment: Mapping[str, str],
    while_running: Callable[[], None],
    poll_seconds: float = 0.2,
    hosts: int = 1,
    rendezvous: str | None = None,
) -> None:
    """Run `python -m module job` on `ranks` ranks under torchrun and wait until they end.

    On a host with GPUs each rank gets one of its own, once enough of them are free.

    **Arguments**

    - `logs`: folder for `rank-<n>.log` (stdout and stderr of a rank) and `torchrun.log`.
    - `environment`: variables for this host's ranks; they override those inherited from this
      process.
    - `while_running`: called in this thread every `poll_seconds`, and once after the ranks ended.
    - `hosts`, `rendezvous`: how many hosts share the ranks, and the `host:port` of this one at
      which the torchruns of the others wait (docs/operate/hosts.md).

    **Raises** `RankFailed` if a rank's exit code is not 0: it names the rank that failed first,
    not those that failed or were ended because of it. `ConfigError` for an impossible number of
    ranks. After any exception, and if this process is killed, no rank, helper process, port or
    build lock of this host remains.
    """
    local_ranks = ranks_per_host("engine.ranks", ranks, hosts)
    job, logs = job.resolve(), logs.resolve()
    logs.mkdir(parents=True, exist_ok=True)
    devices = host_devices({**os.environ, **environment})
    with (
        gpu_lent_to_ranks(),
        # Next to the job file: if this process is killed, it is removed with the work folder.
        tempfile.TemporaryDirectory(prefix="dynolab-ranks-", dir=job.parent) as folder,
        ExitStack() as gpu_locks,  # stays empty without GPUs
    ):
        locks = gpu_locks.enter_context(hold_devices(local_ranks, devices)) if devices else {}
        visible = {VISIBLE: ",".join(locks)} if locks else {}
        private, job_id = Path(folder), uuid.uuid4().hex
        program = Program(
            module=module,
            job=job,
            ranks=ranks,
            logs=logs,
            failures=private,
            libraries=library_versions(),
        )
        options = [
            *_rendezvous_options(private, hosts, rendezvous),
            f"--nproc-per-node={local_ranks}",
            "--max-restarts=0",
            "--shutdown-timeout=5",
            f"--log-dir={private}",  # the default leaves a folder in /tmp
            "--module",
            "tasks.runtime.launch.rank_entry",
            program.model_dump_json(),
        ]
        # The locked GPUs come last: no variable of the caller may show the ranks others.
        ranks_environment = _environment(private, local_ranks, hosts) | {**environment, **visible}
        try:
            agent = start_child(
                "tasks.runtime.launch.agent",
                [str(private / "torchrun.json"), *options],
                environment=ranks_environment | {JOB_VARIABLE: job_id},
                log=logs / "torchrun.log",
                pass_fds=locks.values(),
            )
            try:
                ended = False
                # Read before `while_running`, which thus runs once more after torchrun's end.
                while not ended:
                    with suppress(subprocess.TimeoutExpired):
                        agent.wait(poll_seconds)
                    ended = agent.poll() is not None
                    while_running()
            finally:
                stop_group(agent)
        finally:
            kill_marked(f"{JOB_VARIABLE}={job_id}")
        if agent.returncode:
            failure = first_failure(private, logs, agent.returncode)
            # torchrun itself gave up, though nobody killed it, and no rank said why: none began.
            if hosts > 1 and failure.rank is None and agent.returncode > 0:
                raise ConfigError(
                    "DYNOLAB_HOSTS",
                    hosts,
                    f"not all of them joined at {rendezvous}: start torchrun on the others, with "
                    f"the same address (docs/operate/hosts.md); {failure}",
                )
            raise failure


# What lines of a rank's log begin with that say nothing of its error:
_BAR = re.compile(r"\d+%\|")  # tqdm: 45%|
_WARNING = re.compile(r"^\S+:\d+: \w*Warning: ")  # Python: file.py:12: UserWarning:
_LOG_LINE = re.compile(r"^\[W\d{4} |^\[[^]]*\] \[(INFO|WARNING)\]")  # torch, then DeepSpeed
_RANK = re.compile(r"^\[rank\d+\]:\s?")  # torch puts it before each line of a traceback
_MOST_LINES, _ERROR_LINES = 400, 12


def error_lines(log: Path) -> list[str]:
    """The last of what a rank's log says of its error.

    That is the end of its last traceback, else its last lines without bars and libraries' warnings.
    """
    lines: list[str] = []
    after_warning = False  # the line of code that a warning names follows it
    for line in last_lines(log, _MOST_LINES):
        text = _RANK.sub("", line)
        if not (_BAR.search(text) or _WARNING.match(text) or _LOG_LINE.match(text)):
            if text.startswith("Traceback "):  # only the last one counts
                lines = []
            if not (after_warning and text.startswith("  ")):
                lines.append(text)
        after_warning = _WARNING.match(text) is not None
    return lines[-_ERROR_LINES:]


def _rendezvous_options(private: Path, hosts: int, rendezvous: str | None) -> list[str]:
    """torchrun's rendezvous options.

    On a single host torchrun keeps its state in a file of a private folder: it unpickles that
    state, and `--standalone` would open a port at which anybody could replace it. Several hosts
    use the static rendezvous: rank 0 is on this host, next to the supervisor that reads its files.
    """
    if hosts == 1:
        return [
            "--nnodes=1",
            "--local-addr=127.0.0.1",
            "--rdzv-backend=c10d",
            "--rdzv-conf=store_type=file",
            f"--rdzv-endpoint={private / 'torchrun'}",
            "--rdzv-id=dynolab",
        ]
    return [
        f"--nnodes={hosts}",
        "--node-rank=0",
        "--rdzv-backend=static",
        f"--rdzv-endpoint={rendezvous}",
    ]


def _environment(private: Path, ranks: int, hosts: int) -> dict[str, str]:
    """The ranks' environment: inherited variables that computing needs, and defaults."""
    from dynolab.distributed import MEETING

    inherited = {name: value for name, value in os.environ.items() if _INHERITED.fullmatch(name)}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    environment = {
        **COMPUTING,
        **inherited,
        "OMP_NUM_THREADS": str(max(1, (cores or 1) // ranks)),
        # A private folder: a killed build leaves a lock on which later jobs would hang silently.
        "TORCH_EXTENSIONS_DIR": str(private / "torch_extensions"),
        OWNER_VARIABLE: json.dumps(this_process()),
    }
    if hosts == 1:
        # By default gloo listens at the address of the host's name, and NCCL at a network's.
        loopback = "lo" if sys.platform.startswith("linux") else "lo0"
        environment |= {
            MEETING: str(private / "ranks"),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # else torchrun opens a port for it
            "GLOO_SOCKET_IFNAME": loopback,
            "NCCL_SOCKET_IFNAME": loopback,
        }
    if not gpus_visible(environment):
        environment.setdefault("DS_ACCELERATOR", "cpu")
    return environment


def first_failure(failures: Path, logs: Path, agent_code: int) -> RankFailed:
    """The error of the rank that failed first, or of torchrun itself.

    Ranks that ended without a record (killed, crashed, `os._exit`) come before recorded exceptions,
    which may be their consequences; then ranks that a communication library aborted; at last those
    that torchrun ended with SIGTERM or, later, SIGKILL.
    """
    if agent_code < 0:  # torchrun was killed
        return RankFailed(None, agent_code, last_lines(logs / "torchrun.log"))
    # Rank → exit code and second, of all that torchrun saw end; and rank → what it recorded itself.
    ends_file = failures / "torchrun.json"
    ends = json.loads(ends_file.read_text()) if ends_file.exists() else {}
    records = {
        file.stem.removeprefix("rank-"): json.loads(file.read_text())
        for file in failures.glob("rank-*.json")
    }
    # torchrun counts whole seconds: ranks that end in this and in the next one may end together.
    first_second = min((second for _, second in ends.values()), default=0)

    def order(rank: str) -> tuple[int, float, int]:
        # The docstring's four kinds, 0 to 3; within a kind by time, then by rank.
        if rank in records:
            return 1, records[rank]["time"], int(rank)
        code, second = ends[rank]
        if code == -signal.SIGTERM or second > first_second + 1:
            return 3, second, int(rank)
        return (2 if code == -signal.SIGABRT else 0), second, int(rank)

    ranks = sorted(ends.keys() | records.keys(), key=order)
    if not ranks:
        return RankFailed(None, agent_code, last_lines(logs / "torchrun.log"))
    rank = ranks[0]
    log = logs / f"rank-{rank}.log"
    record = records.get(rank, {})
    return RankFailed(
        int(rank),
        record["exit_code"] if record else ends[rank][0],
        # A rank that could not even import its program wrote to torchrun's output.
        error_lines(log if log.exists() else logs / "torchrun.log"),
        record.get("reason"),
    )
