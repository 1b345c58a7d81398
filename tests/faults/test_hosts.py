"""Two network namespaces as two hosts of one training; one of them is lost in the middle of it.

The host that starts the training is this machine as it is; the other has a network stack of its
own, with a cable between them (a veth pair) that can be cut. Each has half of the cores, so that
ranks compute on as many threads as two ranks of one host, and so give the same bits.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from tasks.runtime.launch.peer import LOST_SECONDS
from tasks.runtime.system.processes import free_port, marked_processes
from tasks.runtime.system.secret_files import KEY
from tests.faults.records import Record, tell
from tests.flows.history import finished_history, lost
from tests.flows.lab import ROOT, Lab, ended, until

pytestmark = [pytest.mark.faults, pytest.mark.ranks, pytest.mark.services]

IP = shutil.which("ip") or shutil.which("ip", path="/usr/sbin:/sbin")
CORES = sorted(os.sched_getaffinity(0))
HALVES = CORES[: max(1, len(CORES) // 2)], CORES[-max(1, len(CORES) // 2) :]
STOP_SECONDS = 30.0
"""What both hosts need to end their ranks, on a busy machine."""


class Cable:
    """A network namespace at the end of a cable."""

    def __init__(self, number: int) -> None:
        self.name = f"dyno{uuid4().hex[:8]}"
        self.here, self.there = f"10.213.{number}.1", f"10.213.{number}.2"

    def __enter__(self) -> Cable:
        end = f"{self.name}n"
        run("netns", "add", self.name)
        run("link", "add", self.name, "type", "veth", "peer", "name", end, "netns", self.name)
        run("address", "add", f"{self.here}/24", "dev", self.name)
        run("-n", self.name, "address", "add", f"{self.there}/24", "dev", end)
        run("-n", self.name, "link", "set", "lo", "up")
        run("-n", self.name, "link", "set", end, "up")
        self.set("up")
        return self

    def __exit__(self, *_: object) -> None:
        run("netns", "delete", self.name)  # and the cable with it

    def set(self, state: str) -> None:
        """`up` or `down`."""
        run("link", "set", self.name, state)

    def inside(self, *command: str) -> list[str]:
        """A command as the other host runs it."""
        assert IP
        return [IP, "netns", "exec", self.name, *command]


def run(*arguments: str) -> None:
    assert IP
    subprocess.run([IP, *arguments], check=True, capture_output=True)


def _why_not() -> str | None:
    if IP is None:
        return "needs ip of iproute2"
    name = f"dyno{uuid4().hex[:8]}"
    tried = subprocess.run([IP, "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"network namespaces cannot be made here: {tried.stderr.strip()}"
    run("netns", "delete", name)
    return None


@pytest.fixture
def cable() -> Iterator[Cable]:
    if (reason := _why_not()) is not None:
        pytest.skip(reason)
    with Cable(os.getpid() % 250 + 1) as made:
        yield made


class OtherHost:
    """`dynolab join` at the other end of the cable."""

    def __init__(self, lab: Lab, cable: Cable) -> None:
        self.lab, self.cable, self.marker = lab, cable, uuid4().hex
        self.log = lab.folder / f"join-{self.marker}.log"

    def start(self, *before: str) -> None:
        """Starts the command; `before` is what starts it."""
        variables = self.lab.environment | {"DYNOLAB_TEST_HOST": self.marker}
        command = self.cable.inside(*before, sys.executable, "-m", "tasks.runtime.launch.join")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=variables, stdout=log, stderr=log, start_new_session=True
            )
        os.sched_setaffinity(self.process.pid, HALVES[1])

    def processes(self) -> list[int]:
        return marked_processes(f"DYNOLAB_TEST_HOST={self.marker}")

    def ranks(self) -> list[int]:
        """What it runs of a job."""
        return [pid for pid in self.processes() if pid != self.process.pid]

    def kill(self) -> None:
        """As if its power went: every process at once."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def other_host(lab: Lab, cable: Cable, *before: str) -> Iterator[OtherHost]:
    """Another host that waits for trainings of this lab."""
    lab.environment |= {
        "DYNOLAB_HOSTS": "2",
        "DYNOLAB_RENDEZVOUS": f"{cable.here}:{free_port(cable.here)}",
    }
    start = lab.start

    def start_on_its_half(*changes: str) -> subprocess.Popen[str]:
        process = start(*changes)
        os.sched_setaffinity(process.pid, HALVES[0])
        return process

    lab.start = start_on_its_half
    host = OtherHost(lab, cable)
    host.start(*before)
    try:
        yield host
    finally:
        host.process.terminate()
        host.process.wait(STOP_SECONDS)


def resumed(lab: Lab, undisturbed: Lab, project: str) -> bool:
    """Runs the study again; whether it went on and ended with the undisturbed one's bits."""
    _, complained = ended(command := lab.start(f"project={project}"))
    assert command.returncode == 0, complained
    assert lab.manifest("preference")["metrics"]["resumed_from"] >= 3
    return same(lab, undisturbed)


def same(lab: Lab, undisturbed: Lab) -> bool:
    return lab.hashes("preference") == undisturbed.hashes("preference")


def test_ranks_on_two_hosts_give_the_bits_of_one(lab: Lab, undisturbed: Lab, cable: Cable) -> None:
    with other_host(lab, cable) as other:
        command = lab.start("project=hosts")
        rank = until(lambda: lab.ranks().get(1))
        assert rank in other.processes(), "which the cable alone connects to the others"
        said, complained = ended(command)
        assert command.returncode == 0, said + complained
        until(lambda: not other.ranks(), STOP_SECONDS)
        assert other.process.poll() is None, "it waits for the next training"
    assert same(lab, undisturbed)
    assert lab.left_behind() == []


@pytest.mark.parametrize("way", ["killed", "cut off", "switched off"])
def test_a_lost_host_ends_the_training_soon_and_it_resumes(
    way: str, lab: Lab, undisturbed: Lab, cable: Cable, record_property: Record
) -> None:
    project = way.replace(" ", "-")
    with other_host(lab, cable) as other:
        command = lab.start(f"project={project}")
        lab.pause_preference()
        began = time.monotonic()
        if way == "killed":
            other.kill()
        else:
            cable.set("down")
            if way == "cut off":
                os.kill(lab.ranks()[1], signal.SIGCONT)
            else:
                other.kill()
        _, complained = ended(command)
        seconds = time.monotonic() - began
        assert command.returncode == 2
        assert complained.count("error ") == 1
        assert f"({cable.there}) was lost" in complained
        assert "newest resume state" in complained
        assert "Traceback" not in complained
        assert seconds < LOST_SECONDS + STOP_SECONDS
        until(lambda: not other.ranks(), LOST_SECONDS + STOP_SECONDS)
        cable.set("up")
        if way != "cut off":
            other.start()
        identical = resumed(lab, undisturbed, project)
        until(lambda: not other.ranks(), STOP_SECONDS)
    history = finished_history(lab.mlflow, project)
    record_property("seconds", seconds)
    tell(
        record_property,
        f"a host of two is {way} in the middle of a training",
        left=lab.left_behind(),
        metrics_lost=lost(history, undisturbed.history()),
        resume_identical=identical,
    )


def test_a_rank_killed_on_another_host_is_named_and_training_resumes(
    lab: Lab, undisturbed: Lab, cable: Cable, record_property: Record
) -> None:
    with other_host(lab, cable) as other:
        command = lab.start("project=remote-rank")
        os.kill(lab.pause_preference(), signal.SIGKILL)
        _, complained = ended(command)
        assert command.returncode == 2
        assert complained.count("error ") == 1
        assert "rank 1 was killed by SIGKILL; its last lines:" in complained
        until(lambda: not other.ranks(), STOP_SECONDS)
        identical = resumed(lab, undisturbed, "remote-rank")
        until(lambda: not other.ranks(), STOP_SECONDS)
    history = finished_history(lab.mlflow, "remote-rank")
    tell(
        record_property,
        "a rank on the other host of two is killed",
        left=lab.left_behind(),
        metrics_lost=lost(history, undisturbed.history()),
        resume_identical=identical,
    )


def test_the_host_that_starts_a_training_is_lost_and_the_other_waits_for_its_return(
    lab: Lab, undisturbed: Lab, cable: Cable, record_property: Record
) -> None:
    with other_host(lab, cable) as other:
        command = lab.start("project=first")
        lab.pause_preference()
        command.kill()
        ended(command)
        until(lambda: not other.ranks(), STOP_SECONDS)
        assert other.process.poll() is None
        identical = resumed(lab, undisturbed, "first")
        until(lambda: not other.ranks(), STOP_SECONDS)
    history = finished_history(lab.mlflow, "first")
    tell(
        record_property,
        "the first host of two is killed in the middle of a training",
        left=lab.left_behind(),
        metrics_lost=lost(history, undisturbed.history()),
        resume_identical=identical,
    )


def test_hosts_that_do_not_share_the_home_are_told_so(
    lab: Lab, cable: Cable, record_property: Record
) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("needs unshare of util-linux")
    lab.environment[KEY] = secrets.token_hex(32)  # which both have, as no home gives it to them
    hidden = f'mount -t tmpfs none {lab.home} && exec "$@"'
    with other_host(lab, cable, unshare, "--mount", "sh", "-c", hidden, "sh"):
        command = lab.start("project=apart")
        _, complained = ended(command)
    assert command.returncode == 2
    assert complained.count("error ") == 1
    assert "DYNOLAB_HOME" in complained and "one folder that all hosts share" in complained
    assert "Traceback" not in complained
    tell(
        record_property,
        "a host of two does not see the shared home",
        left=lab.left_behind(),
        metrics_lost=None,
    )
