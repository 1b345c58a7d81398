"""What the report's part on squeezing is made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dynolab.data.rows import read_rows
from dynolab.results.squeezing import Forecast, Generation, RisenMass


@dataclass(frozen=True)
class Squeezing:
    """Where risen probability went, what foretold it, and how much answers repeat themselves."""

    risen: tuple[RisenMass, ...] = ()
    forecasts: tuple[Forecast, ...] = ()
    generations: tuple[Generation, ...] = ()


def read_squeezing(folder: Path) -> Squeezing:
    """Reads the result of a squeezing stage."""
    return Squeezing(
        tuple(read_rows(folder / "risen.jsonl", RisenMass)),
        tuple(read_rows(folder / "forecasts.jsonl", Forecast)),
        tuple(read_rows(folder / "generations.jsonl", Generation)),
    )
