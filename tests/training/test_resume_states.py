"""A resume state counts when the host that commits it sees every rank's files, and holds all."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dynolab.training import resume
from dynolab.training.resume import _load_random, _save_random, _sizes, _trouble_seeing


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


DRAWS: dict[str, Callable[[], float]] = {
    "python": random.random,
    "python gauss": lambda: random.gauss(0.0, 1.0),
    "numpy": np.random.random,
    "numpy gauss": lambda: float(np.random.standard_normal()),
    "torch": lambda: torch.rand(()).item(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_go_on_where_the_state_was_saved(name: str, tmp_path: Path) -> None:
    draw = DRAWS[name]
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    draw()  # Gaussian numbers come in pairs, of which the second is kept
    _save_random(tmp_path / "random-0")
    expected = [draw() for _ in range(3)]
    random.seed(4)
    np.random.seed(4)
    torch.manual_seed(4)
    _load_random(tmp_path / "random-0")
    assert [draw() for _ in range(3)] == expected
