"""One process plays one rank of many: what it hears of the others is made up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dynolab import distributed


def play(
    monkeypatch: pytest.MonkeyPatch,
    rank: int,
    ranks: int,
    gather: Callable[[Any], list[Any]] | None = None,
) -> None:
    """From here on this process is a rank of so many.

    `gather`: what all ranks say, in their order, given what this one says; default: the same.
    """
    monkeypatch.setattr(distributed, "rank", lambda: rank)
    monkeypatch.setattr(distributed, "world_size", lambda: ranks)
    monkeypatch.setattr(distributed, "gather", gather or (lambda mine: ranks * [mine]))
