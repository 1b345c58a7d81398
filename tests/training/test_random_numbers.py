"""Random numbers go on where a resume state was saved."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dynolab.training.resume import _load_random, _save_random
from tests.training.interrupted import seed_generators

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
    seed_generators(3)
    draw()  # Gaussian numbers come in pairs, of which the second is kept
    _save_random(tmp_path / "random-0")
    expected = [draw() for _ in range(3)]
    seed_generators(4)
    _load_random(tmp_path / "random-0")
    assert [draw() for _ in range(3)] == expected


def test_an_accelerator_s_random_numbers_go_on_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[list[int]] = []
    state = torch.tensor([3, 1, 4], dtype=torch.uint8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state: kept.append(state.tolist()))
    _save_random(tmp_path / "random-0")
    _load_random(tmp_path / "random-0")
    assert kept == [[3, 1, 4]]
    # What an accelerator left is no use to a machine without one, and the other way round.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    _load_random(tmp_path / "random-0")
    _save_random(tmp_path / "random-1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    _load_random(tmp_path / "random-1")
    assert kept == [[3, 1, 4]]
