"""GPUs that a killed part of the platform held are free as soon as it is dead.

The devices are names alone; all else is real.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from unittest.mock import patch

import psutil
import pytest

from tasks.runtime.launch import devices
from tasks.runtime.launch.devices import hold_devices
from tasks.runtime.servers.services import PREFECT
from tests.faults.conftest import LATER
from tests.faults.points import POINTS, dead, goes_on
from tests.faults.records import Record, tell
from tests.faults.standing import Standing, engine_of, launcher_of, standing
from tests.flows.lab import Lab, until

pytestmark = [pytest.mark.faults, pytest.mark.ranks, pytest.mark.services]

DEVICES = ("a", "b")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, undisturbed: Lab) -> Iterator[Standing]:
    lab = Lab(tmp_path_factory.mktemp("gpus")).adopt(undisturbed, without=LATER)
    with patch.dict(os.environ, {devices.LISTED: ",".join(DEVICES)}), standing(lab) as running:
        yield running


@pytest.fixture
def platform(host: Standing) -> Standing:
    """A platform on a host with two GPUs, with all results up to the finetuned model."""
    shutil.rmtree(host.lab.home / "store" / "stages" / "preference", ignore_errors=True)
    assert free(host.lab) == list(DEVICES)
    return host


def free(lab: Lab) -> list[str]:
    """The devices whose lock nobody holds."""
    with patch.object(tempfile, "tempdir", str(lab.temporary)), ExitStack() as asked:
        return [name for name in DEVICES if devices._lock(f"device-{name}", asked, wait=False)]


def left(platform: Standing) -> list[str]:
    """What stayed, but for the files that locks are taken on."""
    return [path for path in platform.left_behind() if not path.endswith("dynolab-devices")]


@pytest.mark.parametrize("who", ["rank", "launcher", "engine", "worker"])
def test_what_a_killed_part_held_is_free_again(
    who: str, platform: Standing, undisturbed: Lab, record_property: Record
) -> None:
    project = f"gpus of a killed {who}"
    run = platform.start(project)
    rank = platform.lab.pause_preference()
    assert free(platform.lab) == []
    assert psutil.Process(rank).environ()["CUDA_VISIBLE_DEVICES"] == "a,b"
    if who == "worker":
        platform.kill_worker()
    else:
        find = {"rank": psutil.Process, "launcher": launcher_of, "engine": engine_of}[who]
        find(rank).kill()
    until(lambda: free(platform.lab) == list(DEVICES), 30)
    if who == "worker":
        platform.work_again()
    assert platform.end(run) in ("Failed", "Crashed")
    dead(platform)
    identical = goes_on(platform, undisturbed, project, POINTS[1])  # with the same GPUs
    tell(
        record_property,
        f"{who} killed while its ranks hold GPUs",
        left=left(platform),
        metrics_lost=platform.metrics_lost(project, undisturbed),
        resume_identical=identical,
    )


def test_a_training_keeps_its_gpus_while_the_server_is_away(
    platform: Standing, undisturbed: Lab, record_property: Record
) -> None:
    project = "gpus without a server"
    run = platform.start(project)
    rank = platform.lab.pause_preference()
    platform.kill(PREFECT)
    assert free(platform.lab) == []
    platform.start_again(PREFECT)
    os.kill(rank, signal.SIGCONT)
    assert platform.end(run) == "Completed"
    assert free(platform.lab) == list(DEVICES)
    tell(
        record_property,
        "Prefect server killed while ranks hold GPUs",
        left=left(platform),
        metrics_lost=platform.metrics_lost(project, undisturbed),
    )


def test_a_run_that_waits_for_gpus_is_cancelled_at_once(
    platform: Standing, record_property: Record
) -> None:
    with (
        patch.object(tempfile, "tempdir", str(platform.lab.temporary)),
        hold_devices(1, DEVICES),
    ):
        run = platform.start("waiting for gpus")
        until(lambda: free(platform.lab) == [])  # the one that is left waits with its run
        assert not platform.lab.ranks()
        seconds = platform.cancel(run)
        assert platform.end(run) == "Cancelled"
        dead(platform)
        until(lambda: len(free(platform.lab)) == 1, 10)
    tell(
        record_property,
        "cancelled while it waits for GPUs",
        left=left(platform),
        metrics_lost=None,
        cancel_seconds=seconds,
    )
