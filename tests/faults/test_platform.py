"""A run of a deployment is cancelled, or loses a process or a server; nothing is lost or left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from typing import Literal
from unittest.mock import patch

import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.flow_engine import MINIMUM_HEARTBEAT_INTERVAL

from flows.deployment.upkeep import crash_silent_runs
from tasks.runtime.launch.devices import LISTED, hold_devices
from tasks.runtime.servers.service import MLFLOW, PREFECT
from tests.faults.records import Record, tell
from tests.faults.standing import GPUS, Standing, engine_of, launcher_of, standing
from tests.flows.lab import ROOT, Lab, until

pytestmark = [pytest.mark.faults, pytest.mark.ranks, pytest.mark.services]

Point = Literal["before the first resume state", "between two resume states"]
POINTS: tuple[Point, ...] = ("before the first resume state", "between two resume states")


def paused(platform: Standing, point: Point) -> int:
    """Rank 1, stopped at that point of preference training."""
    lab = platform.lab
    return lab.pause_start() if point == POINTS[0] else lab.pause_preference()


def dead(platform: Standing) -> None:
    """No process of a run lives longer than the moment that it takes to end."""
    until(lambda: not set(platform.lab.processes()) - platform.lab.kept, 30)


def goes_on(platform: Standing, undisturbed: Lab, project: str, point: Point) -> bool:
    """Started again the training ends; whether with the weights of the undisturbed one."""
    assert platform.end(platform.train(project)) == "Completed"
    resumed = platform.lab.manifest("preference")["metrics"]["resumed_from"]
    assert resumed == 0 if point == POINTS[0] else resumed >= 3
    return platform.lab.hashes("preference") == undisturbed.hashes("preference")


@pytest.fixture(scope="module")
def shared_platform(
    tmp_path_factory: pytest.TempPathFactory, undisturbed: Lab
) -> Iterator[Standing]:
    """A platform that stands for all tests, on a host with two GPUs by name."""
    later = ("preference", "probe", "report")
    lab = Lab(tmp_path_factory.mktemp("platform")).adopt(undisturbed, without=later)
    with patch.dict(os.environ, {LISTED: ",".join(GPUS)}), standing(lab) as running:
        yield running


@pytest.fixture
def platform(shared_platform: Standing) -> Standing:
    """The platform with all results up to the finetuned model, and nothing at work."""
    shutil.rmtree(shared_platform.lab.home / "store" / "stages" / "preference", ignore_errors=True)
    shared_platform.clear()
    return shared_platform


@pytest.mark.parametrize(
    ("point", "hung"), [(POINTS[0], False), (POINTS[1], False), (POINTS[1], True)]
)
def test_a_cancelled_run_ends_with_all_its_ranks(
    point: Point, hung: bool, platform: Standing, undisturbed: Lab, record_property: Record
) -> None:
    project = f"cancelled {point} {hung}"
    run = platform.train(project)
    rank = paused(platform, point)
    if not hung:
        os.kill(rank, signal.SIGCONT)
    seconds = platform.cancel(run)
    assert platform.end(run) == "Cancelled"
    dead(platform)
    assert platform.statuses(project) == ["KILLED"]
    identical = goes_on(platform, undisturbed, project, point)
    tell(
        record_property,
        f"cancelled {point}, a rank {'hung' if hung else 'at work'}",
        left=platform.left_behind(),
        metrics_lost=platform.metrics_lost(project, undisturbed),
        resume_identical=identical,
        cancel_seconds=seconds,
    )
    assert seconds <= 10


@pytest.mark.parametrize(
    ("who", "point"),
    [("rank", POINTS[0]), *((who, POINTS[1]) for who in ("rank", "launcher", "engine"))],
)
def test_a_killed_process_ends_the_run_and_it_resumes(
    who: str, point: Point, platform: Standing, undisturbed: Lab, record_property: Record
) -> None:
    project = f"{who} {point}"
    run = platform.train(project)
    rank = paused(platform, point)
    assert platform.free_gpus() == []
    victim = {"rank": psutil.Process, "launcher": launcher_of, "engine": engine_of}[who](rank)
    victim.kill()
    assert platform.end(run) == ("Crashed" if who == "engine" else "Failed")
    dead(platform)
    identical = goes_on(platform, undisturbed, project, point)
    tell(
        record_property,
        f"{who} killed {point}",
        left=platform.left_behind(),
        metrics_lost=platform.metrics_lost(project, undisturbed),
        resume_identical=identical,
    )


def test_a_killed_worker_takes_its_run_along_and_a_new_one_resumes(
    platform: Standing, undisturbed: Lab, record_property: Record
) -> None:
    run = platform.train("worker")
    platform.lab.pause_preference()
    platform.kill_worker()
    until(lambda: not platform.lab.ranks(), 10)
    platform.work_again()
    assert platform.end(run) == "Crashed"
    identical = goes_on(platform, undisturbed, "worker", POINTS[1])
    tell(
        record_property,
        "worker killed between two resume states",
        left=platform.left_behind(),
        metrics_lost=platform.metrics_lost("worker", undisturbed),
        resume_identical=identical,
    )


def test_a_run_that_vanished_with_its_worker_is_crashed_by_the_server(
    platform: Standing, undisturbed: Lab, record_property: Record
) -> None:
    with SyncPrefectClient(platform.prefect, httpx_settings={"headers": platform.login}) as client:
        crash_silent_runs(client, timedelta(seconds=MINIMUM_HEARTBEAT_INTERVAL + 10))
    run = platform.train("vanished")
    platform.lab.pause_start()
    platform.kill_worker()
    until(lambda: not platform.lab.ranks(), 10)
    assert platform.state(run)["type"] == "RUNNING"
    assert platform.end(run) == "Crashed"
    assert "sent no event" in platform.state(run)["message"]
    platform.work_again()
    identical = goes_on(platform, undisturbed, "vanished", POINTS[0])
    tell(
        record_property,
        "worker killed, and nobody there to say so",
        left=platform.left_behind(),
        metrics_lost=platform.metrics_lost("vanished", undisturbed),
        resume_identical=identical,
    )


@pytest.mark.parametrize("server", [PREFECT, MLFLOW])
def test_training_does_without_a_server_until_it_is_back(
    server: str, platform: Standing, undisturbed: Lab, record_property: Record
) -> None:
    project = f"{server} away"
    run = platform.train(project)
    rank = platform.lab.pause_preference()
    platform.kill(server)
    os.kill(rank, signal.SIGCONT)
    until(lambda: platform.lab.markers("preference/*"))
    platform.start_again(server)
    assert platform.end(run) == "Completed"
    reconciled(platform)
    identical = platform.lab.hashes("preference") == undisturbed.hashes("preference")
    tell(
        record_property,
        f"{server} killed between two resume states, back after the result",
        left=platform.left_behind(),
        metrics_lost=platform.metrics_lost(project, undisturbed),
        resume_identical=identical,
    )


def test_a_run_that_waits_for_gpus_is_cancelled_at_once(
    platform: Standing, record_property: Record
) -> None:
    with (
        patch.object(tempfile, "tempdir", str(platform.lab.temporary)),
        hold_devices(1, GPUS),
    ):
        run = platform.train("waiting for gpus")
        until(lambda: platform.free_gpus() == [])  # the one that is left waits with its run
        assert not platform.lab.ranks()
        seconds = platform.cancel(run)
        assert platform.end(run) == "Cancelled"
        dead(platform)
    tell(
        record_property,
        "cancelled while it waits for GPUs",
        left=platform.left_behind(),
        metrics_lost=None,
        cancel_seconds=seconds,
    )


def reconciled(platform: Standing) -> str:
    """What `dynolab reconcile` says on this home."""
    environment = platform.lab.environment | platform.variables
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "reconcile"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
