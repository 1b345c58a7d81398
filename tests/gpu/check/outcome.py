"""What a check measures, the bounds that it asserts, and how it came out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

Verdict = Literal["met", "missed", "measured", "not run"]
Place = Literal["GPU", "pretended GPU", "CPU ranks"]
Measure = Callable[[Path], Mapping[str, float]]

NO_GPU = "no GPU"


class Figure(BaseModel):
    """A number that a check measures.

    `at_most`, `at_least`: its bound, if it has one. `needs_gpu`: what stands in for a GPU does not
    say whether the bound is met. `gpus`: how many it needs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    means: str
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    needs_gpu: bool = False
    gpus: int = 1

    @property
    def bound(self) -> str:
        """The bound as text."""
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        return "–" if self.at_least is None else f"≥ {self.at_least:g}"

    def verdict_of(self, value: float) -> Verdict:
        """Whether the bound is met; a value that is not a number misses it."""
        if self.at_most is not None:
            return "met" if value <= self.at_most else "missed"
        if self.at_least is not None:
            return "met" if value >= self.at_least else "missed"
        return "measured"


class Check(BaseModel):
    """Some figures that are measured together, in a process of their own.

    `measure` takes an empty folder and returns the figures' values by name. `stand_in`: where it
    runs on machines without GPUs; None: nowhere.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    asserts: str
    figures: tuple[Figure, ...]
    measure: Measure
    stand_in: Place | None


class Outcome(BaseModel):
    """A figure's value, where it was measured, and its verdict; `reason` of what was not met."""

    figure: Figure
    value: float | None
    place: Place | None
    verdict: Verdict
    reason: str = ""


class Ended(BaseModel):
    """How a check's process ended: with values, or with the error that kept it from some."""

    values: dict[str, float]
    seconds: float
    error: str | None = None


class Checked(BaseModel):
    """A check with the outcome of each of its figures."""

    name: str
    asserts: str
    seconds: float
    outcomes: list[Outcome]


def judge(check: Check, ended: Ended | None, gpus: int, why_not: str = NO_GPU) -> Checked:
    """The outcomes of a check's figures.

    **Arguments:**

    - `ended`: how the check's process ended; None: it was not run.
    - `gpus`: how many this machine has.
    - `why_not`: why nothing stands in for a GPU.
    """
    place: Place | None = "GPU" if gpus else check.stand_in
    outcomes = [_outcome(figure, ended, place, gpus, why_not) for figure in check.figures]
    seconds = 0.0 if ended is None else ended.seconds
    return Checked(name=check.name, asserts=check.asserts, seconds=seconds, outcomes=outcomes)


def _outcome(
    figure: Figure, ended: Ended | None, place: Place | None, gpus: int, why_not: str
) -> Outcome:
    if figure.gpus > max(gpus, 1):
        reason = f"{gpus} of {figure.gpus} GPUs" if gpus else NO_GPU
        return Outcome(figure=figure, value=None, place=None, verdict="not run", reason=reason)
    if ended is None:
        return Outcome(figure=figure, value=None, place=None, verdict="not run", reason=why_not)
    value = ended.values.get(figure.name)
    # A stand-in's value shows that the program runs, and its error that it does not.
    if figure.needs_gpu and not gpus and (ended.error is None or value is not None):
        return Outcome(figure=figure, value=value, place=place, verdict="not run", reason=NO_GPU)
    if value is None:
        reason = ended.error or "the check did not measure it"
        return Outcome(figure=figure, value=None, place=place, verdict="missed", reason=reason)
    return Outcome(figure=figure, value=value, place=place, verdict=figure.verdict_of(value))


def count(checked: Sequence[Checked]) -> dict[Verdict, int]:
    """How many figures have each verdict."""
    verdicts = [outcome.verdict for each in checked for outcome in each.outcomes]
    kinds: tuple[Verdict, ...] = ("met", "missed", "measured", "not run")
    return {kind: verdicts.count(kind) for kind in kinds}
