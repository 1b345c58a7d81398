"""Which run is best against a baseline: clearly worse on no measure, clearly better on most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from dynolab.comparisons.arm_table import ArmTable

MEASURES: Mapping[str, int] = {
    "train/chosen": 1,
    "heldout/chosen": 1,
    "matched/chosen": 1,
    "train/fell": -1,
    "heldout/fell": -1,
}
"""Figure → 1 if more is better, −1 if less is: mean changes of chosen answers in nats, at the end
and at the same margin, and shares of them that fell."""

ENDS = ("heldout/chosen", "train/chosen")
"""Figures that order runs which are better on equally many measures."""


@dataclass(frozen=True)
class Standing:
    """A run against the baseline: the measures on which it is clearly better, and clearly worse.

    `end`: its mean difference from the baseline, by which equals are ordered.
    """

    run: str
    better: tuple[str, ...]
    worse: tuple[str, ...]
    end: float

    @property
    def recommended(self) -> bool:
        """Clearly better on some measure and clearly worse on none."""
        return bool(self.better) and not self.worse


def standings(
    figures: ArmTable,
    runs: Sequence[str],
    baseline: str,
    measures: Mapping[str, int] = MEASURES,
    ends: Sequence[str] = ENDS,
) -> list[Standing]:
    """The runs, recommended ones first, then by measures that are better, then by their ends.

    Clear: the 95% interval over seeds excludes zero, of enough pairs (`ArmTable.decides`).

    **Arguments:** `measures`: figures with the sign of what is better; `ends`: the figures of
    `Standing.end`, of which the first counts that is of enough pairs.
    """

    def clear(run: str, sign: int) -> tuple[str, ...]:
        changes = {name: figures.difference(run, baseline, name) for name in measures}
        return tuple(
            name
            for name, change in changes.items()
            if figures.decides(change, name) and sign * measures[name] * change.mean > 0
        )

    known = [name for name in ends if name in figures.names and not figures.few(name)] or [ends[-1]]
    every = [
        Standing(run, clear(run, 1), clear(run, -1), change.mean if change.n else -inf)
        for run in runs
        for change in (figures.difference(run, baseline, known[0]),)
    ]
    return sorted(every, key=lambda own: (own.recommended, len(own.better), own.end), reverse=True)


def unlearned(figures: ArmTable, runs: Sequence[str]) -> list[str]:
    """Runs that do not prefer the chosen answers of training pairs more than before."""
    margins = {run: figures.mean(run, "train/margin") for run in runs}
    return [run for run, margin in margins.items() if margin.n and margin.mean <= 0]
