"""Who watches a training's metrics, and may end it early."""

from __future__ import annotations

import threading

import pytest

from dynolab.errors import Pruned
from tasks.runtime.track.tail import MetricLine, Watched, watched_by


def line(step: int, value: float) -> MetricLine:
    return MetricLine(step, step, 0.0, {"loss": value})


def test_a_watcher_ends_the_training_from_its_own_thread() -> None:
    seen: list[tuple[str, int]] = []

    def watch(stage: str, row: MetricLine) -> None:
        seen.append((stage, row.step))
        if row.metrics["loss"] > 1:
            raise Pruned(stage, row.step, "loss", row.metrics["loss"])

    with watched_by(watch):
        watched = Watched("sft")

    def read() -> None:  # as the supervisor does, on a thread of its own
        for step, value in enumerate([0.5, 2.0, 3.0]):
            watched(line(step, value))

    watched.check()
    reader = threading.Thread(target=read)
    reader.start()
    reader.join()
    assert seen == [("sft", 0), ("sft", 1)], "after its end nobody watches"
    with pytest.raises(Pruned, match="sft ended early at step 1: loss = 2"):
        watched.check()
