"""Beside training: metrics are followed and watched, and resume states kept."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
from doubles import MemoryRun

from dynolab.errors import Pruned
from dynolab.objectives import SFTConfig
from dynolab.results.study import MetricsLine
from dynolab.training.config import TrainConfig
from tasks.runtime import training_monitor as supervisor_module
from tasks.runtime.track.progress import PlainLines, Progress
from tasks.runtime.track.tail import Tail
from tasks.runtime.training_monitor import TrainingMonitor, Watched, watched_by
from tests.flows.lab import until


def metric_text(step: int) -> str:
    metrics = {"train/loss": 1.0}
    return MetricsLine(step=step, examples=4 * step, time=1.5, metrics=metrics).model_dump_json()


class Training:
    """What a supervisor looks after; `keep` stands for the store."""

    def __init__(self, folder: Path, keep: Callable[[int], None] = lambda step: None) -> None:
        self.output, self.states = folder / "output", folder / "resume"
        self.output.mkdir()
        self.run = MemoryRun("sft", {"tags": {}})
        self.kept: list[int] = []
        self.shown = StringIO()
        self._keep = keep
        self.work: Any = SimpleNamespace(
            name="sft",
            output=self.output,
            tracker=self.run,
            address="sft/key",
            progress=Progress(PlainLines(self.shown, seconds=0)),
            commit_resume=self.commit_resume,
        )

    def commit_resume(self, step: int, folder: Path) -> None:
        assert (folder / "state.json").exists()
        self._keep(step)
        self.kept.append(step)

    def supervised(self, begin: int = 0) -> TrainingMonitor:
        return TrainingMonitor(self.work, self.states, 10, begin=begin)

    def save(self, step: int) -> None:
        unfinished = self.states / f".step-{step:08d}.unfinished"
        unfinished.mkdir()
        (unfinished / "state.json").write_text("{}")
        unfinished.rename(self.states / f"step-{step:08d}")

    def log(self, step: int) -> None:
        with (self.output / "metrics.jsonl").open("a") as file:
            file.write(metric_text(step) + "\n")

    def logged(self) -> list[int]:
        return [step for step, _ in self.run.values]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "POLL_SECONDS", 0.01)


def test_a_training_that_goes_on_says_from_which_step(tmp_path: Path) -> None:
    training = Training(tmp_path)
    with training.supervised(begin=6):
        for step in (0, 3, 6, 8):  # a resumed training begins with the lines of the one before
            training.log(step)
    shown = training.shown.getvalue().splitlines()
    assert shown[:2] == ["sft: goes on from step 6", "sft: started"]
    assert [line.split()[1] for line in shown[2:-1]] == ["6/10", "8/10"]


def test_a_store_that_hangs_holds_up_no_metrics_and_gets_the_newest_state(tmp_path: Path) -> None:
    hangs, healed = threading.Event(), threading.Event()

    def hang(step: int) -> None:
        hangs.set()
        assert healed.wait(30)

    training = Training(tmp_path, hang)
    with training.supervised() as supervisor:
        training.save(1)
        assert hangs.wait(30)
        training.log(2)
        until(lambda: training.logged() == [2], 30)
        supervisor.check()
        training.save(2)
        training.save(3)
        assert training.kept == []
        healed.set()
        until(lambda: len(training.kept) == 2, 30)
    assert training.kept == [1, 3]
    assert list(training.states.iterdir()) == []


def test_what_ends_a_thread_ends_the_training(tmp_path: Path) -> None:
    def broken(step: int) -> None:
        raise OSError("the states' disk is gone")

    training = Training(tmp_path, broken)
    with pytest.raises(OSError, match="disk is gone"), training.supervised() as supervisor:
        training.save(1)
        until(supervisor.check, 30)


@pytest.mark.parametrize("fails", [True, False])
def test_the_last_state_is_kept_where_training_failed_and_only_there(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "POLL_SECONDS", 60.0)
    training = Training(tmp_path)
    try:
        with training.supervised():
            training.save(4)
            training.log(5)
            if fails:
                raise RuntimeError("power cut")
    except RuntimeError:
        assert fails
    assert training.kept == ([4] if fails else [])
    assert training.logged() == [5]


def reported(training: Training, monkeypatch: pytest.MonkeyPatch, clients: str) -> None:
    """Trains two steps with `clients` of DYNOLAB_REPORT_TO."""
    monkeypatch.setenv("DYNOLAB_REPORT_TO", clients)
    training.work.tracker.record = SimpleNamespace(experiment="lab", name="first / sft")
    training.work.config = TrainConfig(objective=SFTConfig())
    with training.supervised():
        training.log(1)
        training.log(2)


def test_clients_get_the_metrics_and_a_broken_one_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, asked = Mock(), dict[str, Any]()

    def init(**more: Any) -> Mock:
        asked.update(more)
        return run

    for client, stub in {"wandb": SimpleNamespace(init=init), "trackio": SimpleNamespace()}.items():
        stub.__spec__ = SimpleNamespace(origin="stub")
        monkeypatch.setitem(sys.modules, client, stub)  # type: ignore[arg-type]
    training = Training(tmp_path)
    reported(training, monkeypatch, "wandb, trackio")
    assert (asked["project"], asked["name"]) == ("lab", "first / sft")
    assert asked["config"]["objective"]["name"] == "sft"
    assert run.mock_calls == [
        call.log({"train/loss": 1.0}, step=1),
        call.log({"train/loss": 1.0}, step=2),
        call.finish(exit_code=0),
    ]
    assert "trackio" in caplog.text
    assert training.logged() == [1, 2]


@pytest.mark.parametrize("client", ["wandb", "trackio"])
def test_the_real_client_keeps_the_metrics(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.chdir(kept)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(kept))  # read at the import
    pytest.importorskip(client, reason="needs: pip install '.[trackers]'")
    reported(Training(tmp_path), monkeypatch, client)
    files = [file for file in kept.rglob("*") if file.suffix in (".wandb", ".db")]
    assert files
    assert all(b"train/loss" in file.read_bytes() for file in files)


def test_passes_complete_lines_once_and_reads_a_replaced_file_again(tmp_path: Path) -> None:
    file, seen = tmp_path / "metrics.jsonl", list[MetricsLine]()
    tail = Tail(file)

    def poll() -> None:
        for lines in tail.batches(2):
            seen.extend(lines)

    poll()  # not there yet
    file.write_text(
        f'{metric_text(1)}\nnot json\n{{"step": 1}}\n{metric_text(2)}\n{metric_text(3)[:10]}'
    )
    poll()
    poll()
    with file.open("a") as stream:
        stream.write(metric_text(3)[10:] + "\n")
    poll()
    assert [(row.step, row.examples) for row in seen] == [(1, 4), (2, 8), (3, 12)]
    other = tmp_path / "other.jsonl"
    other.write_text("".join(metric_text(step) + "\n" for step in range(1, 6)))
    other.replace(file)
    poll()
    assert [row.step for row in seen[3:]] == [1, 2, 3, 4, 5]


def test_a_watcher_ends_the_training_from_its_own_thread(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []

    def watch(stage: str, row: MetricsLine) -> None:
        seen.append((stage, row.step))
        if row.metrics["loss"] > 1:
            raise Pruned(stage, row.step, "loss", row.metrics["loss"])

    with watched_by(watch):
        watched = Watched("sft", tmp_path / "stop")

    def read() -> None:  # as the supervisor does, on a thread of its own
        for step, value in enumerate([0.5, 2.0, 3.0]):
            watched(MetricsLine(step=step, examples=step, time=0.0, metrics={"loss": value}))

    watched.check()
    reader = threading.Thread(target=read)
    reader.start()
    reader.join()
    assert seen == [("sft", 0), ("sft", 1)], "after its end nobody watches"
    assert (tmp_path / "stop").exists(), "a training in this process sees it"
    with pytest.raises(Pruned, match="sft ended early at step 1: loss = 2"):
        watched.check()
