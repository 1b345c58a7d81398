from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tasks.runtime.track.tail import MetricLine, MetricsTail


class Recorder:
    """Takes the place of a RunTracker: the tail only calls `log_metrics`."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float], int | None]] = []

    def log_metrics(
        self, values: Mapping[str, float], step: int, timestamp_ms: int | None = None
    ) -> None:
        self.rows.append((step, dict(values), timestamp_ms))


def line(step: int, time: float = 1.5, **metrics: float) -> str:
    row = {"step": step, "examples": 4 * step, "time": time, "metrics": metrics or {"loss": 1.0}}
    return json.dumps(row) + "\n"


class Followed:
    """A file of metrics, its tail, and what that has fed."""

    def __init__(self, path: Path) -> None:
        self.path, self.recorder = path, Recorder()
        self.lines: list[MetricLine] = []
        tracker: Any = self.recorder
        self.tail = MetricsTail(path, tracker, self.lines.append)

    def poll_after(self, *lines: str) -> int:
        """Poll once the file holds these lines alone."""
        self.path.write_text("".join(lines))
        return self.tail.poll()

    def steps(self) -> list[int]:
        return [step for step, _, _ in self.recorder.rows]


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(tmp_path / "metrics.jsonl")


def test_feeds_complete_lines_once(followed: Followed) -> None:
    assert followed.tail.poll() == 0  # not there yet
    assert followed.poll_after(line(1), line(2), line(3)[:10]) == 2
    assert followed.tail.poll() == 0
    assert followed.poll_after(line(1), line(2), line(3)) == 1
    assert followed.recorder.rows[0] == (1, {"loss": 1.0}, 1500)
    assert followed.steps() == [1, 2, 3]
    assert [row.examples for row in followed.lines] == [4, 8, 12]


def test_truncated_file_is_read_again_without_repeating_steps(followed: Followed) -> None:
    followed.poll_after(*(line(step) for step in range(1, 8)))
    followed.poll_after(*(line(step) for step in range(1, 6)))  # the checkpoint's lines
    with followed.path.open("a") as stream:
        stream.writelines(line(step, time=9.0) for step in range(6, 10))
    followed.tail.poll()
    assert followed.steps() == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_replaced_file_that_is_longer_is_read_from_its_beginning(
    followed: Followed, tmp_path: Path
) -> None:
    followed.poll_after(line(1), line(2))
    other = tmp_path / "other.jsonl"
    other.write_text("".join(line(step, time=2.0) for step in range(1, 6)))
    other.replace(followed.path)
    followed.tail.poll()
    assert followed.steps() == [1, 2, 3, 4, 5]


def test_metrics_of_one_step_may_come_in_several_lines(followed: Followed) -> None:
    assert followed.poll_after(line(5, loss=1.0), line(5, probe=2.0), line(5, loss=3.0)) == 2
    assert [values for _, values, _ in followed.recorder.rows] == [{"loss": 1.0}, {"probe": 2.0}]


def test_unreadable_lines_are_left_out(followed: Followed) -> None:
    assert followed.poll_after("not json\n", '{"step": 1}\n', line(2)) == 1
    assert followed.steps() == [2]
