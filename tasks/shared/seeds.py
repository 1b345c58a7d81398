"""Seeds of repeated comparisons."""

from __future__ import annotations

from typing import Annotated

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
