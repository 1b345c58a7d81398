"""Real torchrun launches of a small rank program that succeeds, fails, or is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from dynolab.distributed import MEETING
from dynolab.errors import RankFailed
from dynolab.functions import ALLOWED
from tasks.runtime.launch.launcher import error_lines, first_failure, launch_ranks
from tasks.runtime.system.processes import marked_processes, port_in_use
from tests.flows.lab import until

pytestmark = pytest.mark.ranks
HERE = Path(__file__).parent


class Job:
    """A job of the fake rank program, and what its ranks told about themselves."""

    def __init__(self, folder: Path, actions: list[list[str]]) -> None:
        self.folder, self.ranks, self.logs = folder, len(actions), folder / "logs"
        self.file = folder / "job.json"
        content = {"folder": str(folder), "ranks": {str(r): a for r, a in enumerate(actions)}}
        self.file.write_text(json.dumps(content))

    def launch(self, while_running: Callable[[], None] = lambda: None) -> None:
        launch_ranks(
            "fake_rank",
            self.file,
            ranks=self.ranks,
            logs=self.logs,
            environment={"PYTHONPATH": str(HERE), "GIVEN": "yes"},
            while_running=while_running,
            poll_seconds=0.05,
        )

    def started(self) -> bool:
        return all((self.folder / f"rank-{rank}.json").exists() for rank in range(self.ranks))

    def seen(self, rank: int) -> dict:
        return json.loads((self.folder / f"rank-{rank}.json").read_text())

    def environment(self, rank: int) -> dict[str, str]:
        return self.seen(rank)["environment"]

    def ports(self) -> list[int]:
        """What the job's processes listen on."""
        return [
            at.laddr.port
            for pid in marked_processes(f"DYNOLAB_JOB={self.environment(0)['DYNOLAB_JOB']}")
            for at in psutil.Process(pid).net_connections(kind="inet")
            if at.status == psutil.CONN_LISTEN
        ]

    def left_behind(self) -> list[str]:
        """Processes, ports and build locks of the job that still exist."""
        environment = self.environment(0)
        left = [f"pid {p}" for p in marked_processes(f"DYNOLAB_JOB={environment['DYNOLAB_JOB']}")]
        if port_in_use(int(environment["MASTER_PORT"])):
            left.append(f"port {environment['MASTER_PORT']}")
        if Path(environment["TORCH_EXTENSIONS_DIR"]).exists():
            left.append(environment["TORCH_EXTENSIONS_DIR"])
        return left


SECRETS = {
    "AWS_SECRET_ACCESS_KEY",
    "AZURE_CLIENT_SECRET",
    "DYNOLAB_KEY",
    "DYNOLAB_SWEEPS",
    "DYNOLAB_MLFLOW_DATABASE",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_URI",
    "OPENAI_API_KEY",
    "PGPASSWORD",
    "PREFECT_API_AUTH_STRING",
    "REDISCLI_AUTH",
    "WANDB_API_KEY",
    "http_proxy",
}


def test_all_ranks_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = dict.fromkeys(SECRETS, "a secret") | {
        ALLOWED: "my.rewards",
        "NCCL_DEBUG": "WARN",
        "RANK": "5",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_WAIT_POLICY": "ACTIVE",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name in ("OMP_NUM_THREADS", "DS_ACCELERATOR", "THP_MEM_ALLOC_ENABLE"):
        monkeypatch.delenv(name, raising=False)
    job = Job(tmp_path, [["wait-for-looked"], ["wait-for-looked", "lock"]])
    calls: list[bool] = []
    ports: set[int] = set()

    def look() -> None:
        calls.append((tmp_path / "left-0").exists())
        if job.started():
            ports.update(job.ports())
            (tmp_path / "looked").touch()

    job.launch(look)

    assert ports == set(), "whoever reached torchrun's would have a say in what ranks do"
    assert calls[-1], "called after the end too, so that the last lines are seen"
    assert "rank 1 of 2 starts" in (job.logs / "rank-1.log").read_text()
    for rank in range(2):
        environment = job.environment(rank)
        assert environment.items() >= {
            ("WORLD_SIZE", "2"),
            ("GIVEN", "yes"),
            ("DS_ACCELERATOR", "cpu"),
            ("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // 2))),
            (ALLOWED, "my.rewards"),
            ("NCCL_DEBUG", "WARN"),
            ("OMP_WAIT_POLICY", "ACTIVE"),
            ("THP_MEM_ALLOC_ENABLE", "1"),
        }
        private = Path(environment[MEETING]).parent
        assert private.parent == tmp_path and not private.exists()
        assert "a secret" not in environment.values()
        assert not environment.keys() & SECRETS
    assert job.left_behind() == []


def test_an_exception_is_reported_with_its_rank_and_last_lines(tmp_path: Path) -> None:
    job = Job(tmp_path, [["helper", "sleep"], ["wait-for-helper-0", "raise"]])
    with pytest.raises(RankFailed) as failed:
        job.launch()
    assert (failed.value.rank, failed.value.exit_code) == (1, 1)
    assert failed.value.last_lines[-1] == "RuntimeError: rank 1 has a bug"
    assert "rank 1 ended with exit code 1" in str(failed.value)
    assert job.left_behind() == []


def test_a_foreseen_error_of_a_rank_is_told_in_its_own_words(tmp_path: Path) -> None:
    job = Job(tmp_path, [["sleep"], ["wait-for-rank-0.json", "refuse"]])
    with pytest.raises(RankFailed) as failed:
        job.launch()
    assert str(failed.value) == "rows = '1': give others (raised by rank 1)"
    assert failed.value.last_lines[-1].endswith("ConfigError: rows = '1': give others")


def test_a_rank_that_dies_without_a_word_is_the_cause(tmp_path: Path) -> None:
    job = Job(tmp_path, [["sleep"], ["wait-for-rank-0.json", "kill"]])
    with pytest.raises(RankFailed, match="rank 1 was killed by SIGKILL") as failed:
        job.launch()
    assert (failed.value.rank, failed.value.exit_code) == (1, -signal.SIGKILL)
    assert failed.value.last_lines == ["rank 1 of 2 starts"]
    assert job.left_behind() == []


def test_a_rank_that_cannot_import_its_program_is_told_in_its_words(tmp_path: Path) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "pydantic.py").write_text("raise ImportError('pydantic is broken here')")
    with pytest.raises(RankFailed) as failed:
        launch_ranks(
            "tests.runtime.fake_rank",
            tmp_path / "job.json",
            ranks=1,
            logs=tmp_path / "logs",
            environment={"PYTHONPATH": str(tmp_path / "path")},
            while_running=lambda: None,
        )
    assert failed.value.rank == 0
    assert any("pydantic is broken here" in line for line in failed.value.last_lines)


NOISE = """\
Loading weights:   0%|          | 0/40 [00:00<?, ?it/s]\rLoading weights: 100%|███| 40/40 [00:00]
/x/torch/c10d_logger.py:83: FutureWarning: `all_gather_into_tensor` is deprecated.
  return func(*args, **kwargs)
[2026-11-28 18:46:42,319] [WARNING] [real_accelerator.py:213:get_accelerator] Setting to CPU.
"""


def test_bars_and_warnings_of_libraries_are_no_error(tmp_path: Path) -> None:
    log = tmp_path / "rank-1.log"
    log.write_text(f"{NOISE}rank 1 starts\n")
    assert error_lines(log) == ["rank 1 starts"]
    frames = ["Traceback (most recent call last):", '  File "a.py", line 3, in f', "    g()"]
    error = [*frames, "RuntimeError: a bug"]
    log.write_text("\n".join(["starts", *(f"[rank1]: {line}" for line in error), NOISE]))
    assert error_lines(log) == error
    killed = str(RankFailed(1, -9, []))
    assert killed.startswith("rank 1 was killed by SIGKILL and said nothing of an error. Run the")


def test_an_interruption_ends_the_ranks(tmp_path: Path) -> None:
    job = Job(tmp_path, [["lock", "sleep"], ["ignore-sigterm", "helper", "sleep"]])

    def interrupt() -> None:
        if job.started() and (tmp_path / "helper-1").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.launch(interrupt)
    assert job.left_behind() == []


def test_ranks_end_with_a_killed_torchrun(tmp_path: Path) -> None:
    job = Job(tmp_path, [["ignore-sigterm", "sleep"], ["ignore-sigterm", "sleep"]])
    killed: list[int] = []

    def kill_torchrun() -> None:
        if job.started() and not killed:
            killed.append(job.seen(0)["agent"])
            os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(RankFailed, match="launcher was killed by SIGKILL") as failed:
        job.launch(kill_torchrun)
    assert failed.value.rank is None
    assert job.left_behind() == []


def test_ranks_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from test_launcher import Job;"
        "job = Job(pathlib.Path(sys.argv[1]), [['ignore-sigterm', 'sleep']] * 2); job.launch()"
    )
    search = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    environment = {**os.environ, "PYTHONPATH": search, "TMPDIR": str(tmp_path)}
    job = Job(tmp_path, [["ignore-sigterm", "sleep"], ["ignore-sigterm", "sleep"]])
    supervisor = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment)
    try:
        until(job.started, 30)
    finally:
        supervisor.kill()
        supervisor.wait()
    marker = f"DYNOLAB_JOB={job.environment(0)['DYNOLAB_JOB']}"
    until(lambda: not marked_processes(marker), 10)
    until(lambda: not port_in_use(int(job.environment(0)["MASTER_PORT"])), 10)


def test_ranks_that_torchrun_had_to_kill_are_not_the_cause(tmp_path: Path) -> None:
    """torchrun kills a rank that outlives SIGTERM by 30 s, and lists it as failed."""
    (tmp_path / "rank-1.log").write_text("RuntimeError: a bug\n")
    ends = {"0": [-signal.SIGKILL, 130], "1": [1, 100], "2": [-signal.SIGTERM, 100]}
    (tmp_path / "torchrun.json").write_text(json.dumps(ends))
    first = first_failure(tmp_path, tmp_path, 1)
    assert (first.rank, first.last_lines) == (1, ["RuntimeError: a bug"])
    ends = {"0": [-signal.SIGTERM, 100], "1": [-signal.SIGABRT, 100]}
    (tmp_path / "torchrun.json").write_text(json.dumps(ends))
    assert first_failure(tmp_path, tmp_path, 1).rank == 1, "who aborted goes before who was ended"
    (tmp_path / "rank-0.json").write_text(json.dumps({"time": 99.5, "exit_code": 1}))
    assert first_failure(tmp_path, tmp_path, 1).rank == 0, "who raised goes before who aborted"
    (tmp_path / "rank-1.json").write_text(json.dumps({"time": 99.0, "exit_code": 1}))
    assert first_failure(tmp_path, tmp_path, 1).rank == 1, "who raised first is the cause"
