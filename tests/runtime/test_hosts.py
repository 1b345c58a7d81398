"""Two torchruns on loopback, as on two hosts: this process starts one, the other waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dynolab.errors import ConfigError
from dynolab.store import library_versions
from dynolab.training.job import TrainJob
from tasks.runtime.launch.launcher import launch_ranks, ranks_per_host
from tasks.runtime.launch.rank_entry import Program, check_agreement
from tasks.runtime.system.processes import free_port
from tasks.runtime.system.settings import Settings
from tests.training.small import apart, make_files, make_job, settings

pytestmark = pytest.mark.ranks


@contextmanager
def other_host(rendezvous: str, log: Path) -> Iterator[None]:
    """The command of docs/operate/hosts.md, once."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--node-rank=1"),
        *("--nproc-per-node=1", "--max-restarts=0", "--rdzv-backend=static"),
        *(f"--rdzv-endpoint={rendezvous}", "-m", "tasks.runtime.launch.rank_entry"),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            yield
            process.wait(60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def launch(job: TrainJob, folder: Path, **hosts: Any) -> None:
    file = folder / "job.json"
    file.write_text(job.model_dump_json())
    launch_ranks(
        "tasks.ranks.train",
        file,
        ranks=2,
        logs=folder / "logs",
        environment={"OMP_NUM_THREADS": "1"},
        while_running=lambda: None,
        **hosts,
    )


@pytest.mark.study
def test_two_hosts_train_as_one_does_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    rendezvous = f"127.0.0.1:{free_port()}"
    make_files(tmp_path)
    config = settings(
        engine={"kind": "deepspeed", "ranks": 2, "zero_stage": 2},
        steps=2,
        warmup_steps=1,
        probe_every=0,
        checkpoint_every=0,
        record_steps=[],
    )
    jobs = [make_job(tmp_path, tmp_path / name, config) for name in ("one", "two")]
    launch(jobs[0], tmp_path / "one")
    with other_host(rendezvous, tmp_path / "other.log"):
        launch(jobs[1], tmp_path / "two", hosts=2, rendezvous=rendezvous)
    assert apart(*jobs) == 0.0


def test_hosts_run_programs_of_ranks_alone_and_with_the_same_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    program = Program(
        module="tasks.ranks.train",
        job=tmp_path,
        ranks=2,
        logs=tmp_path,
        failures=tmp_path,
        libraries=library_versions(),
    )
    check_agreement(program)
    with pytest.raises(ConfigError, match="module"):
        check_agreement(program.model_copy(update={"module": "os"}))
    with pytest.raises(ConfigError, match=r"--nproc-per-node .* same number on each"):
        check_agreement(program.model_copy(update={"ranks": 4}))
    with pytest.raises(ConfigError, match="torch"):
        check_agreement(program.model_copy(update={"libraries": {"torch": "0.1"}}))


def test_ranks_must_divide_and_several_hosts_need_an_address() -> None:
    assert ranks_per_host("ranks", 4, 2) == 2
    with pytest.raises(ConfigError, match=r"ranks = 0: choose 1 or more"):
        ranks_per_host("ranks", 0, 1)
    with pytest.raises(ConfigError, match=r"ranks = 3: .*multiple of DYNOLAB_HOSTS = 2"):
        ranks_per_host("ranks", 3, 2)
    with pytest.raises(ConfigError, match="DYNOLAB_RENDEZVOUS"):
        Settings.from_environment({"DYNOLAB_HOSTS": "2"})
