"""How replays cut a training into segments: records and resume states share the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.shared.replay import segment_steps

GB = 10**9


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with weights of one gigabyte, none of it written."""
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(GB)
    return tmp_path


@pytest.mark.parametrize(
    ("steps", "disk", "every", "segment"),
    [
        (20, 100 * GB, 1, 20),  # all records at once
        (20, 99 * GB, 1, 19),  # 95 of records and a state of 3
        (500, 2 * GB, 1, 18),  # nothing fits: 90 of records and 27 states of 3
        (500, 2 * GB, 10, 50),  # a tenth of the steps is recorded
        (1, 1, 1, 1),
    ],
)
def test_a_segment_is_as_long_as_the_disk_allows(
    model: Path, steps: int, disk: int, every: int, segment: int
) -> None:
    assert segment_steps(model, steps, disk, every=every) == segment
