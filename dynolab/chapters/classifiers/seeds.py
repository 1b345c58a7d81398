"""The seeds over which a comparison is repeated, and those of what is drawn within one."""

from __future__ import annotations

import zlib
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field

from dynolab.errors import ConfigError


def _once(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds):
        raise ConfigError("seeds", list(seeds), "name every seed once")
    return seeds


Seeds = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), AfterValidator(_once)
]
"""At least one, each once; they train together, and intervals are over them."""


def seed_for(purpose: str, seed: int) -> int:
    """A seed of its own for one of the things that a run draws.

    Two draws from one seed are no two draws: their permutations of N examples are the same, and
    networks of equal layers have the same weights.
    """
    state = np.random.SeedSequence([seed, zlib.crc32(purpose.encode())]).generate_state(1)
    return int(state[0])
