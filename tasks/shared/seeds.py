"""Seeds of repeated comparisons, and the names of their steps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from dynolab.errors import ConfigError
from dynolab.results.arms import Start


def _check_unique(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds):
        raise ConfigError("seeds", list(seeds), "name every seed once")
    return seeds


Seeds = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), AfterValidator(_check_unique)
]
"""At least one, without repeats; they train together, and intervals are over them."""


def start_of(start: Start, seed: int) -> str:
    """Name of the step whose model arms start from."""
    return {
        "base": f"base-{seed}",
        "sft": f"sft-{seed}",
        "extended": f"sft-extended-{seed}",
        "extended_half": f"sft-extended-half-{seed}",
    }[start]


Part = Literal["", "filter", "said", "evaluation", "displacement", "forces", "squeezing"]


def step_of(arm: str, seed: int, part: Part = "") -> str:
    """Name of the step that trains an arm with a seed, or of a part of the arm beside it.

    Parts are the filter of its pairs, answers that it said, and measurements of its model, its
    objective, its recorded steps and its squeezing index.
    """
    return f"{arm}-{seed}-{part}".rstrip("-")
