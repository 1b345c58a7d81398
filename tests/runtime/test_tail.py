from __future__ import annotations

import json
from pathlib import Path

from tasks.runtime.track.tail import MetricLine, MetricsTail


def line(step: int) -> str:
    return json.dumps({"step": step, "examples": 4 * step, "time": 1.5, "metrics": {"m": 1.0}})


def test_passes_complete_lines_once_and_reads_a_replaced_file_again(tmp_path: Path) -> None:
    file, seen = tmp_path / "metrics.jsonl", list[MetricLine]()
    tail = MetricsTail(file, seen.append)
    tail.poll()  # not there yet
    file.write_text(f'{line(1)}\nnot json\n{{"step": 1}}\n{line(2)}\n{line(3)[:10]}')
    tail.poll()
    tail.poll()
    with file.open("a") as stream:
        stream.write(line(3)[10:] + "\n")
    tail.poll()
    assert [(row.step, row.examples) for row in seen] == [(1, 4), (2, 8), (3, 12)]
    other = tmp_path / "other.jsonl"
    other.write_text("".join(line(step) + "\n" for step in range(1, 6)))
    other.replace(file)
    tail.poll()
    assert [row.step for row in seen[3:]] == [1, 2, 3, 4, 5]
