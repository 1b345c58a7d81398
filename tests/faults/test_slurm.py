"""A study on two nodes of a real Slurm: whatever befalls its job, it ends with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from glob import glob
from pathlib import Path

import pytest

from dynolab.training.job import STOP
from tests.faults.records import Record, tell
from tests.faults.slurm import NODES, Cluster, cluster, missing
from tests.flows.lab import SMALL, Lab, until

MISSING = missing()
pytestmark = [
    pytest.mark.faults,
    pytest.mark.ranks,
    pytest.mark.services,
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
]
STUDY = ("study", "--config", str(SMALL), "--set", "project=slurm")
LEFT_OUT = ("forces", "kernel", "squeezing")


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, cluster(Path(folder)) as started:
        yield started


class Job:
    """The study as a job, and what befalls it while rank 1, on the second node, is stopped."""

    def __init__(self, slurm: Cluster, lab: Lab) -> None:
        self.slurm, self.lab, self.log = slurm, lab, lab.folder / "job.log"
        self.number = self.submit()

    def submit(self) -> str:
        self.slurm.wait_idle()
        words = [*STUDY, *(word for name in LEFT_OUT for word in ("--set", f"{name}=null"))]
        return self.slurm.submit(self.lab, self.log, *words, options=("--time=60",))

    def told(self) -> None:
        """Wait until the training has been told to end."""
        # `glob` passes over folders that vanish as it looks, unlike `Path.glob`.
        stop = str(self.lab.home / "scratch" / "preference-*" / "**" / STOP)
        until(lambda: glob(stop, recursive=True), 120)  # noqa: PTH207

    def again(self) -> None:
        """Wait until Slurm has queued the job again."""
        until(lambda: "Restarts=1" in self.slurm.run("scontrol", "show", "job", self.number), 120)


def requeued(job: Job, rank: int) -> None:
    job.slurm.run("scontrol", "requeue", job.number)
    job.told()
    os.kill(rank, signal.SIGCONT)
    job.again()


def out_of_time(job: Job, rank: int) -> None:
    """The limit comes nearer than the file's `--signal=TERM@180`."""
    job.slurm.run("scontrol", "update", f"JobId={job.number}", "TimeLimit=3")
    job.told()
    os.kill(rank, signal.SIGCONT)
    job.again()
    job.slurm.run("scontrol", "update", f"JobId={job.number}", "TimeLimit=60")


def cancelled(job: Job, rank: int) -> None:
    job.slurm.run("scancel", job.number)
    job.told()
    os.kill(rank, signal.SIGCONT)
    assert job.slurm.ended(job.number) == "CANCELLED"
    job.number = job.submit()


def preempted(job: Job, rank: int) -> None:
    urgent = ["sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null"]
    subprocess.run([*urgent, "--wrap", "true"], env=job.slurm.environment, check=True)
    job.told()
    os.kill(rank, signal.SIGCONT)
    job.again()


def loses_a_node(job: Job, rank: int) -> None:
    """The second node's daemon and all that runs there."""
    job.slurm.kill(NODES[1])
    job.again()
    job.slurm.start(NODES[1])


def loses_a_rank(job: Job, rank: int) -> None:
    os.kill(rank, signal.SIGKILL)
    assert job.slurm.ended(job.number) == "FAILED"
    assert "Run the same command again" in job.log.read_text()
    job.slurm.run("scontrol", "requeue", job.number)
    job.again()


def loses_the_controller(job: Job, rank: int) -> None:
    """The job goes on without it, and it finds the job again."""
    job.slurm.kill("slurmctld")
    os.kill(rank, signal.SIGCONT)
    time.sleep(5)
    job.slurm.start("slurmctld")


FAULTS: tuple[Callable[[Job, int], None], ...] = (
    requeued,
    out_of_time,
    cancelled,
    preempted,
    loses_a_node,
    loses_a_rank,
    loses_the_controller,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_job_ends_with_the_bits_of_an_undisturbed_one(
    fault: Callable[[Job, int], None],
    slurm: Cluster,
    lab: Lab,
    undisturbed: Lab,
    record_property: Record,
) -> None:
    job = Job(slurm, lab)
    fault(job, lab.pause_preference())
    assert slurm.ended(job.number) == "COMPLETED", job.log.read_text()[-3000:]
    assert "report  " in job.log.read_text()
    if fault is not loses_the_controller:
        assert lab.manifest("preference")["metrics"]["resumed_from"] >= 3
    slurm.wait_idle()
    identical = lab.hashes("preference") == undisturbed.hashes("preference")
    record_property("slurm_fault", fault.__name__)
    tell(
        record_property,
        f"on Slurm, a job is or {fault.__name__.replace('_', ' ')}",
        # What torchrun has for its logs on the second node, when the job's end ends it.
        left=[path for path in lab.left_behind() if "dynolab-torchrun-" not in path],
        metrics_lost=None,
        resume_identical=identical,
    )
