"""A run of a deployment is cancelled, or loses a process or a server; nothing is lost or left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from datetime import timedelta
from unittest.mock import patch

import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.flow_engine import MINIMUM_HEARTBEAT_INTERVAL

from flows.deploy import register_automations
from tasks.runtime.launch.devices import hold_devices
from tasks.runtime.servers.services import MLFLOW, PREFECT
from tests.faults.points import POINTS, Point, dead, goes_on, paused
from tests.faults.records import Record, tell
from tests.faults.standing import GPUS, Standing, engine_of, launcher_of
from tests.flows.history import histories
from tests.flows.lab import ROOT, Lab, until

pytestmark = [pytest.mark.faults, pytest.mark.ranks, pytest.mark.services]


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
        register_automations(client, timedelta(seconds=MINIMUM_HEARTBEAT_INTERVAL + 10))
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


def test_the_reconciler_ends_what_a_killed_run_left(
    platform: Standing, undisturbed: Lab, record_property: Record
) -> None:
    """A helper that a rank put into its own session, and a run that looks at work in MLflow."""
    run = platform.train("left")
    rank = platform.lab.pause_preference()
    marks = {
        name: value for name, value in psutil.Process(rank).environ().items() if name != "RANK"
    }
    helper = subprocess.Popen(["sleep", "600"], env=marks, start_new_session=True)
    engine_of(rank).kill()
    assert platform.end(run) == "Crashed"
    until(lambda: not platform.lab.ranks(), 10)
    assert helper.poll() is None
    assert platform.statuses("left") == ["RUNNING"]
    assert "orphaned processes killed" in reconciled(platform)
    assert helper.wait(10) == -signal.SIGKILL
    assert platform.statuses("left") == ["KILLED"]
    assert [history.status for history in histories(platform.mlflow, "left", "small")] == ["KILLED"]
    identical = goes_on(platform, undisturbed, "left", POINTS[1])
    tell(
        record_property,
        "engine killed, a rank's helper lives on",
        left=platform.left_behind(),
        metrics_lost=platform.metrics_lost("left", undisturbed),
        resume_identical=identical,
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
