"""A training as a Slurm job of two nodes, and what a cluster does to it.

A real slurmctld and slurmd run on loopback.
The job is `deploy/slurm/dynolab.sbatch`. Each node has half of the cores, so that its rank computes
on as many threads as one of two ranks on one host, and so gives the same bits.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.faults.records import UNDER_SLURM, Record, tell
from tests.faults.slurm_cluster import Cluster, slurm_cluster, why_not
from tests.flows.history import finished_history, lost
from tests.flows.lab import ROOT, SMALL, Lab, until

pytestmark = [pytest.mark.faults, pytest.mark.ranks, pytest.mark.services]

JOB = ROOT / "deploy/slurm/dynolab.sbatch"
STOP_SECONDS = 60.0
ENDED = "cancelled; run the same command again to go on"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


class Job:
    """The study of a lab as a job of two nodes."""

    def __init__(self, cluster: Cluster, lab: Lab, project: str, *changes: str) -> None:
        self.cluster, self.lab, self.project = cluster, lab, project
        self.changes = (f"project={project}", *changes)
        self.program = lab.folder / "dynolab"
        self.program.write_text(f'#!/bin/sh\nexec {sys.executable} -m flows.cli "$@"\n')
        self.program.chmod(0o755)
        self.log = lab.folder / "job.log"
        self.submit()

    def submit(self) -> None:
        changes = [word for change in self.changes for word in ("--set", change)]
        study = [str(JOB), "study", "--config", str(SMALL), *changes]
        variables = self.lab.environment | {"DYNOLAB_COMMAND": str(self.program)}
        options = ["--parsable", "--nodes=2", f"--chdir={ROOT}", f"--output={self.log}"]
        self.number = self.cluster("sbatch", *options, *study, environment=variables)

    def says(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def ends(self) -> str:
        """Waits for its end; returns its state."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
        return until(lambda: next(filter(self.cluster.state(self.number).__eq__, ended), None))

    def goes_on(self, undisturbed: Lab) -> bool:
        """Waits for its good end; whether it went on and ended with the undisturbed one's bits."""
        assert self.ends() == "COMPLETED", self.says()
        assert self.lab.manifest("preference")["metrics"]["resumed_from"] >= 3
        return self.lab.hashes("preference") == undisturbed.hashes("preference")


def requeued_by_slurm(job: Job) -> None:
    job.cluster("scontrol", "requeue", job.number)


def near_its_time_limit(job: Job) -> None:
    job.cluster("scontrol", "update", f"jobid={job.number}", "timelimit=2")


def preempted(job: Job) -> None:
    script = job.lab.folder / "urgent.sh"
    script.write_text("#!/bin/sh\nsleep 1\n")
    output = f"--output={job.lab.folder}/urgent.log"
    job.cluster("sbatch", "--partition=high", "--nodes=2", output, str(script))


def told_to_end(job: Job) -> None:
    job.cluster("scancel", "--signal=TERM", job.number)


@pytest.mark.parametrize("fault", [requeued_by_slurm, near_its_time_limit, preempted, told_to_end])
def test_a_job_that_slurm_takes_back_saves_its_state_and_goes_on(
    fault: Callable[[Job], None],
    cluster: Cluster,
    lab: Lab,
    undisturbed: Lab,
    record_property: Record,
) -> None:
    name = fault.__name__.replace("_", "-")
    job = Job(cluster, lab, name)
    rank = lab.pause_preference()
    fault(job)
    until(lambda: list(lab.home.glob("scratch/preference-*/resume/stop")) or ENDED in job.says())
    if fault is near_its_time_limit:
        cluster("scontrol", "update", f"jobid={job.number}", "timelimit=60")
    with suppress(ProcessLookupError):  # Slurm has let it go on already
        os.kill(rank, signal.SIGCONT)
    same = job.goes_on(undisturbed)
    assert ENDED in job.says()
    _tell(record_property, name, job, undisturbed, same)


def test_a_cancelled_job_ends_and_the_same_command_goes_on(
    cluster: Cluster, lab: Lab, undisturbed: Lab, record_property: Record
) -> None:
    job = Job(cluster, lab, "cancelled")
    lab.pause_preference()
    cluster("scancel", job.number)
    assert job.ends() == "CANCELLED"
    until(lambda: not lab.ranks(), STOP_SECONDS)
    job.submit()
    _tell(record_property, "cancelled", job, undisturbed, job.goes_on(undisturbed))


@pytest.mark.parametrize("way", ["rank", "node"])
def test_a_loss_ends_the_job_with_one_message_and_a_requeue_goes_on(
    way: str, cluster: Cluster, lab: Lab, undisturbed: Lab, record_property: Record
) -> None:
    job = Job(cluster, lab, f"lost-{way}")
    rank = lab.pause_preference()
    if way == "rank":
        os.kill(rank, signal.SIGKILL)
    else:
        cluster.kill_node(cluster.nodes[1])
    assert job.ends() == "FAILED", job.says()
    assert job.says().count("error ") == 1
    assert ("rank 1" if way == "rank" else "was lost") in job.says()
    if way == "node":
        cluster.start_node(cluster.nodes[1])
    until(lambda: not lab.ranks(), STOP_SECONDS)
    cluster("scontrol", "requeue", job.number)
    _tell(record_property, f"lost {way}", job, undisturbed, job.goes_on(undisturbed))


def _tell(record: Record, fault: str, job: Job, undisturbed: Lab, same: bool) -> None:
    until(lambda: not job.lab.left_behind(), STOP_SECONDS)
    missing = lost(finished_history(job.lab.mlflow, job.project), undisturbed.history())
    tell(
        record,
        f"{fault} {UNDER_SLURM}",
        left=job.lab.left_behind(),
        metrics_lost=missing,
        resume_identical=same,
    )
