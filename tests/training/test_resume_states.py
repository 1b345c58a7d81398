"""A resume state counts when the host that commits it sees every rank's files."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from dynolab.training import resume
from dynolab.training.resume import _sizes, _trouble_seeing


def folder_of(tmp_path: Path) -> Path:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "shard-0.safetensors").write_bytes(b"mine")
    return tmp_path


def test_what_other_hosts_wrote_is_waited_for(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    mine = _sizes(folder)
    theirs = {"engine/shard-0.safetensors": 0, "engine/shard-1.safetensors": 6}  # seen too early

    def arrive() -> None:
        time.sleep(0.2)
        (folder / "engine" / "shard-1.safetensors").write_bytes(b"theirs")

    writing = threading.Thread(target=arrive)
    writing.start()
    assert _trouble_seeing([mine, theirs], folder) is None
    writing.join()
    assert _sizes(folder)["engine/shard-1.safetensors"] == 6


@pytest.mark.parametrize("size", [None, 3])
def test_a_part_that_never_arrives_whole_costs_the_state(
    size: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "ARRIVE_SECONDS", 0.2)
    folder = folder_of(tmp_path)
    if size is not None:
        (folder / "engine" / "shard-1.safetensors").write_bytes(b"x" * size)
    trouble = _trouble_seeing([{"engine/shard-1.safetensors": 6}], folder)
    assert trouble == (
        "engine/shard-1.safetensors, written on another host, does not arrive on this one"
    )
