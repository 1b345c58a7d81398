"""What dead processes left is set right, and what lives is let be."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from doubles import sleeper

from dynolab.store.owner import this_process
from tasks.runtime.cleanup import clean_up, reap_orphans
from tasks.runtime.launch.launcher import OWNER_VARIABLE
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.client import connect
from tasks.runtime.track.runs import Tracking, left_behind

if TYPE_CHECKING:
    from tests.runtime.conftest import MlflowServer

DEAD = this_process() | {"started": "1"}  # the pid has been given to another process since


def test_what_a_dead_supervisor_owns_is_killed() -> None:
    with sleeper(**{OWNER_VARIABLE: json.dumps(DEAD)}) as orphan:
        assert orphan.pid in reap_orphans()
        assert orphan.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize(
    "owner",
    [
        json.dumps(this_process()),
        json.dumps(DEAD | {"machine": "another boot"}),
        json.dumps(DEAD | {"pid": 2**31}),
        json.dumps([1]),
        "{",
        "[" * 100_000,
        "",
    ],
    ids=["living", "another boot", "no process", "a list", "torn", "deep", "empty"],
)
def test_what_a_living_supervisor_or_another_machine_owns_is_let_be(owner: str) -> None:
    with sleeper(**{OWNER_VARIABLE: owner}) as process:
        assert process.pid not in reap_orphans()
        assert process.poll() is None


@pytest.mark.services
def test_what_another_process_left_is_sent(mlflow_server: MlflowServer, tmp_path: Path) -> None:
    left = Tracking("http://127.0.0.1:1", tmp_path / "outbox", "left")
    left.start_run("r", tags={}, params={}).log_metrics({"m": 2.0}, 1)
    assert left.close(0) == 1
    home = Settings(home=tmp_path, store="", mlflow_tracking_uri=mlflow_server.uri)
    assert clean_up(home)["unsent"] == 0
    assert not left_behind(tmp_path / "outbox")
    client = connect(mlflow_server.uri)
    experiment = client.get_experiment_by_name("left")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.data.metrics) == ("KILLED", {"m": 2.0})
    assert clean_up(home)["unsent"] == 0
