from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def start(path: Path) -> tuple[MetricsTail, Recorder, list[MetricLine]]:
    recorder: Any = Recorder()
    lines: list[MetricLine] = []
    return MetricsTail(path, recorder, lines.append), recorder, lines


def steps(recorder: Recorder) -> list[int]:
    return [row[0] for row in recorder.rows]


def test_feeds_complete_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail, recorder, lines = start(path)
    assert tail.poll() == 0  # not there yet
    path.write_text(line(1) + line(2) + line(3)[:10])
    assert tail.poll() == 2
    assert tail.poll() == 0
    path.write_text(line(1) + line(2) + line(3))
    assert tail.poll() == 1
    assert recorder.rows[0] == (1, {"loss": 1.0}, 1500)
    assert steps(recorder) == [1, 2, 3]
    assert [item.examples for item in lines] == [4, 8, 12]


def test_truncated_file_is_read_again_without_repeating_steps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail, recorder, _ = start(path)
    path.write_text("".join(line(step) for step in range(1, 8)))
    tail.poll()
    path.write_text("".join(line(step) for step in range(1, 6)))  # the checkpoint's lines
    tail.poll()
    with path.open("a") as stream:
        stream.writelines(line(step, time=9.0) for step in range(6, 10))
    tail.poll()
    assert steps(recorder) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_replaced_file_that_is_longer_is_read_from_its_beginning(tmp_path: Path) -> None:
    path, other = tmp_path / "metrics.jsonl", tmp_path / "other.jsonl"
    tail, recorder, _ = start(path)
    path.write_text(line(1) + line(2))
    tail.poll()
    other.write_text("".join(line(step, time=2.0) for step in range(1, 6)))
    other.replace(path)
    tail.poll()
    assert steps(recorder) == [1, 2, 3, 4, 5]


def test_metrics_of_one_step_may_come_in_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail, recorder, _ = start(path)
    path.write_text(line(5, loss=1.0) + line(5, probe=2.0) + line(5, loss=3.0))
    assert tail.poll() == 2
    assert [row[1] for row in recorder.rows] == [{"loss": 1.0}, {"probe": 2.0}]


def test_unreadable_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail, recorder, _ = start(path)
    path.write_text("not json\n" + '{"step": 1}\n' + line(2))
    assert tail.poll() == 1
    assert steps(recorder) == [2]
