"""What the sender does with an outbox that the server refuses, in part or whole."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Experiment, Metric, Run, RunData, RunInfo
from mlflow.exceptions import RestException

from tasks.runtime.track.outbox import Outbox, adopt_left_behind
from tasks.runtime.track.sender import Sender
from tasks.runtime.track.tracking import Tracking

FIRST = {
    "op": "create",
    "experiment": "good",
    "name": "run",
    "time": 1,
    "resume_key": None,
    "tags": {},
    "parent_run": None,
    "parent_outbox": None,
}


class Server(MlflowClient):
    """Knows one run, refuses requests of more than `limit` entities and what is named `bad`."""

    def __init__(self, limit: int = 10_000) -> None:
        super().__init__("http://127.0.0.1:1")
        self.limit, self.created = limit, False
        self.logged: list[str] = []

    def get_experiment_by_name(self, name: str) -> Any:
        if name == "broken":
            raise OSError("disk")
        return Experiment("1", name, "", "active") if self.created else None

    def create_experiment(self, name: str, *args: Any, **options: Any) -> str:
        self.created = True
        return "1"

    def search_runs(self, *args: Any, **options: Any) -> Any:
        return [self.get_run("r1")]

    def get_run(self, run_id: str) -> Run:
        info = RunInfo(run_id, "1", "u", "RUNNING", 0, None, "active", "mlflow-artifacts:/1/r1")
        return Run(info, RunData())

    def get_metric_history(self, run_id: str, key: str) -> Any:
        return []

    def update_run(self, *args: Any, **options: Any) -> None:
        pass

    def set_terminated(self, *args: Any, **options: Any) -> None:
        pass

    def log_batch(
        self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = (), *args: Any
    ) -> None:
        names = [
            f"{entity.key}@{entity.step}" if isinstance(entity, Metric) else entity.key
            for entity in (*metrics, *params, *tags)
        ]
        if len(names) > self.limit or "bad" in names:
            raise RestException({"error_code": "INVALID_PARAMETER_VALUE", "message": "no"})
        self.logged += names


def test_trouble_with_one_outbox_does_not_stop_the_others(tmp_path: Path) -> None:
    """An outbox from an unknown version, and a disk that fails under the next one."""
    for first in ({"op": "begin"}, FIRST | {"experiment": "broken"}):
        Outbox.create(tmp_path, first).close()
    last = Outbox.create(tmp_path, FIRST)
    last.close()
    boxes: dict[str, Outbox] = {}
    adopt_left_behind(tmp_path, boxes)
    assert not Sender(Server(), tmp_path, boxes).send_all()
    assert not last.path.exists()
    assert len(list(tmp_path.glob("*.rejected"))) == 1
    assert sum(box.pending for box in boxes.values()) == 1


def test_of_a_refused_batch_only_what_is_at_fault_is_left_out(tmp_path: Path) -> None:
    box = Outbox.create(tmp_path, FIRST)
    box.append({"op": "params", "values": {f"p{index}": "x" for index in range(30)}})
    box.append({"op": "tags", "values": {"t": "first", "bad": "y"}})
    for step in range(50):
        box.append({"op": "metrics", "step": step, "time": 1, "values": {"loss": 1.0}})
    box.append({"op": "finish", "status": "FINISHED", "time": 2})
    server = Server(limit=7)
    assert Sender(server, tmp_path, {box.id: box}).send_all()
    assert sorted(set(server.logged)) == sorted(
        ["dynolab.outbox", "t"]
        + [f"p{index}" for index in range(30)]
        + [f"loss@{step}" for step in range(50)]
    )
    assert [name for name in server.logged if "@" in name] == [f"loss@{at}" for at in range(50)]
    assert not box.path.exists()


def test_a_journal_that_another_thread_is_adopting_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = threading.Event()

    def slowly(folder: Path, boxes: dict[str, Outbox]) -> None:
        adopted: dict[str, Outbox] = {}
        adopt_left_behind(folder, adopted)
        if adopted:
            locked.set()
            time.sleep(0.5)  # locked, and not among the boxes yet
        boxes.update(adopted)

    Outbox.create(tmp_path, FIRST).close()
    monkeypatch.setattr("tasks.runtime.track.tracking.adopt_left_behind", slowly)
    tracking = Tracking("http://127.0.0.1:1", tmp_path, "good")
    assert locked.wait(10)
    assert tracking.close(1.0) == 1
