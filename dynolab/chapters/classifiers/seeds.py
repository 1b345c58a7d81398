"""Seeds of repeated comparisons, and separate seeds for the random draws within one."""

from __future__ import annotations

import zlib
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field

from dynolab.errors import ConfigError


def _check_unique(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds):
        raise ConfigError("seeds", list(seeds), "name every seed once")
    return seeds


Seeds = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), AfterValidator(_check_unique)
]
"""At least one, without repeats; they train together, and intervals are over them."""


def seed_for(purpose: str, seed: int) -> int:
    """Derives a separate seed for each random draw of a run, by its purpose.

    Draws that share a seed are not independent: they give the same permutation of N examples, and
    the same weights to networks of equal layers.
    """
    state = np.random.SeedSequence([seed, zlib.crc32(purpose.encode())]).generate_state(1)
    return int(state[0])
