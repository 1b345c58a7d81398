"""A training whose store or disk misbehaves in the middle ends with the weights of any other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel

from dynolab.errors import ConfigError
from dynolab.store import Store, filesystem
from dynolab.training import loop
from tasks import training
from tasks.runtime.stage import Platform, Stage, run_stage
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.progress import PlainLines, Progress
from tasks.runtime.track.tracking import Tracking
from tasks.runtime.work import StageResult, Work
from tests.faults.disk import filled, small_disk
from tests.faults.proxy import (
    Fault,
    Proxy,
    hangs,
    loses_answer,
    proxied,
    refuses,
    slows,
    truncates,
)
from tests.faults.records import Record, tell
from tests.flows.history import finished_history, lost
from tests.flows.lab import address_with_login, until
from tests.training.interrupted import Died, Mortal
from tests.training.small import settings

pytestmark = [pytest.mark.faults, pytest.mark.services]

CONFIG = settings(steps=12, checkpoint_every=2, record_steps=(1, 7))
SEND_SECONDS = 60.0


class Given(BaseModel):
    folder: str


def give(work: Work[Given]) -> dict[str, float]:
    """Files that are there, as a result."""
    shutil.copytree(work.config.folder, work.output, dirs_exist_ok=True)
    return {}


GIVEN = Stage("given", 1, give)


@dataclass
class Trainings:
    """One home and store; every run tracks as a process of its own does."""

    settings: Settings
    store: Store
    inputs: Path
    servers: dict[str, str]
    project: str

    def run(self) -> StageResult:
        os.environ.update(self.servers)  # MLflow's client finds its login there
        tracking = Tracking(self.servers["MLFLOW_TRACKING_URI"], self.settings.outbox, self.project)
        platform = Platform(
            self.settings, self.store, lambda: tracking, lambda: Progress(PlainLines(StringIO()))
        )
        try:
            made = run_stage(GIVEN, Given(folder=str(self.inputs)), {}, platform)
            inputs = {"model": made, "data": made}
            return run_stage(training.PREFERENCE, CONFIG, inputs, platform)
        finally:
            assert tracking.close(SEND_SECONDS) == 0

    def hashes(self) -> dict[str, str]:
        """Of the result's files that hold no times; it is computed by now."""
        result = self.run()
        assert result.cached
        files = self.store.manifest(result.address, result.digest).files
        return {name: at.sha256 for name, at in files.items() if name != "metrics.jsonl"}

    def tell(self, record: Record, fault: str, undisturbed: Trainings) -> None:
        """What it left and lost, beside the undisturbed one."""
        left = [str(path) for path in self.settings.scratch.iterdir()]
        names = self.store.files.sizes("stages")
        left += [name for name in names if "CLAIM" in name or "/resume/" in name]
        uri = address_with_login(self.servers)
        histories = (finished_history(uri, at.project) for at in (self, undisturbed))
        identical = self.hashes() == undisturbed.hashes()
        tell(record, fault, left=left, metrics_lost=lost(*histories), resume_identical=identical)


def trainings(home: Path, store: Store, inputs: Path, servers: dict[str, str]) -> Trainings:
    place = Settings(home=home, store=store.files.url)
    return Trainings(place, store, inputs, servers, f"faults-{uuid4().hex}")


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, inputs: Path, servers: dict[str, str]
) -> Trainings:
    """What a training leaves that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    store = Store(f"file://{folder}/store", cache=folder / "cache")
    alone = trainings(folder, store, inputs, servers)
    alone.run()
    return alone


@pytest.fixture
def remote(
    s3_server: str,
    s3_bucket: str,
    tmp_path: Path,
    inputs: Path,
    servers: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[Proxy, Trainings]]:
    monkeypatch.setitem(filesystem.S3_CLIENT, "read_timeout", 1.0)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    with proxied(s3_server) as proxy:
        store = Store(f"s3://{s3_bucket}/lab", cache=tmp_path / "cache", endpoint=proxy.address)
        yield proxy, trainings(tmp_path / "home", store, inputs, servers)


def states(method: str, path: str) -> bool:
    """Whatever is asked about resume states but their deletion at the end."""
    return "/resume/" in path and method in ("PUT", "GET")


STORE: dict[str, tuple[Fault, int | None]] = {
    "answers 500 to every resume state": (refuses(500, "InternalError"), None),
    "hangs for a while": (hangs, 3),
    "loses answers for a while": (loses_answer, 4),
    "is behind a slow link": (slows(3e5), None),
}


@pytest.mark.parametrize("name", STORE)
def test_training_does_not_depend_on_its_store_being_well(
    name: str,
    remote: tuple[Proxy, Trainings],
    undisturbed: Trainings,
    record_property: Record,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy, lab = remote
    fault, times = STORE[name]
    genuine = loop.save_state

    def not_too_fast(*arguments: Any) -> None:
        genuine(*arguments)
        until(lambda: proxy.struck > 0, seconds=30)

    monkeypatch.setattr(loop, "save_state", not_too_fast)
    proxy.breaks(fault, states, times)
    done = lab.run()
    proxy.heals()
    lab.store.place(done.stage, done.key).clear_resume()  # its deletion may have failed
    lab.tell(record_property, f"the store {name} during a training", undisturbed)


@pytest.mark.parametrize(
    ("name", "fault", "times"), [("truncates bodies", truncates, 2), ("hangs", hangs, 1)]
)
def test_a_training_that_died_resumes_from_a_store_that_is_not_well(
    name: str,
    fault: Fault,
    times: int,
    remote: tuple[Proxy, Trainings],
    undisturbed: Trainings,
    record_property: Record,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy, lab = remote
    with monkeypatch.context() as patch:
        last = CONFIG.accumulation * 7 + 1
        patch.setattr(training, "run", lambda job: Mortal(job, last).run())
        with pytest.raises(Died):
            lab.run()
    proxy.breaks(fault, states, times)
    done = lab.run()
    assert proxy.struck > 0
    assert done.metrics["resumed_from"] >= 2
    lab.tell(
        record_property,
        f"a training dies, and the store {name} when it is taken up again",
        undisturbed,
    )


@pytest.mark.parametrize("lasts", [False, True], ids=["at every checkpoint", "for good"])
def test_a_full_disk_costs_checkpoints_or_is_named_and_training_goes_on_later(
    lasts: bool,
    tmp_path: Path,
    inputs: Path,
    servers: dict[str, str],
    undisturbed: Trainings,
    record_property: Record,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    module, name = (training, "run") if lasts else (loop, "save_state")
    genuine = getattr(module, name)
    with small_disk(tmp_path / "disk", 16 * 2**20) as disk, monkeypatch.context() as patch:

        def starved(*arguments: Any) -> None:
            with filled(disk):
                genuine(*arguments)

        store = Store(f"file://{tmp_path}/store", cache=tmp_path / "cache")
        lab = trainings(disk / "home", store, inputs, servers)
        patch.setattr(module, name, starved)
        if lasts:
            with pytest.raises(ConfigError, match=r"DYNOLAB_HOME = .*its disk is full"):
                lab.run()
            patch.undo()
        lab.run()
        assert lasts or "training goes on without a resume state of step 2" in caplog.text
        when = "during a training, for good" if lasts else "at every checkpoint"
        lab.tell(record_property, f"the scratch disk is full {when}", undisturbed)
