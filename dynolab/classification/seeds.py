"""The seeds over which a comparison is repeated."""

from __future__ import annotations

from typing import Annotated

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
