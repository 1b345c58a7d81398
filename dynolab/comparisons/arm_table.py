"""An arm's figures, one number each: of the prompts of a run first, then over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.data.rows import Split
from dynolab.results.groups import LikelihoodChange, PromptScore, QuestionDisplacement
from dynolab.rollouts.passes import pass_at_k, pass_levels
from dynolab.statistics import Interval, mean_interval

LAZY_SHARE, LAZY_CHANGE = "displaced/share", "displaced/change"


START = "before"
"""Stands beside the arms for the models that they start from."""


class ArmTable:
    """Figures by arm and seed, their means over seeds, and differences paired by seed.

    **Arguments:**

    - `values`: of every arm one map of figures for each seed, seeds in one order.
    - `within`: where there is one seed, every arm's figures with their intervals over prompts,
      which stand for those over seeds. Differences have none then: one training is no sample of
      trainings.
    """

    def __init__(
        self,
        values: Mapping[str, Sequence[Mapping[str, float]]],
        within: Mapping[str, Mapping[str, Interval]] | None = None,
    ) -> None:
        self._values, self._within = values, within or {}

    @property
    def names(self) -> list[str]:
        """All figures that any arm has."""
        every = (name for seeds in self._values.values() for figures in seeds for name in figures)
        return list(dict.fromkeys(every))

    def values(self, arm: str, name: str) -> Float[ndarray, " seeds"]:
        """One number for every seed; NaN where it was not measured."""
        return np.array([figures.get(name, np.nan) for figures in self._values[arm]], dtype=float)

    def mean(self, arm: str, name: str) -> Interval:
        """Mean over seeds with its t-interval; of one seed that over prompts, where it is known."""
        own = self._within.get(arm, {})
        return own[name] if name in own else self.over_seeds(arm, name)

    def over_seeds(self, arm: str, name: str) -> Interval:
        """Mean over seeds with its t-interval; of one seed there is none."""
        return mean_interval(self.values(arm, name))

    def difference(self, arm: str, other: str, name: str) -> Interval:
        """Mean over seeds of an arm's figure less another's, with its t-interval."""
        return self.against(other).mean(arm, name)

    def against(self, other: str) -> ArmTable:
        """The table of differences to an arm, seed by seed."""
        return ArmTable(
            {
                arm: [
                    {name: value - base[name] for name, value in figures.items() if name in base}
                    for figures, base in zip(seeds, self._values[other], strict=True)
                ]
                for arm, seeds in self._values.items()
            }
        )


def evaluation_figures(
    scores: Sequence[PromptScore], changes: Sequence[LikelihoodChange] = (), *, k: int
) -> dict[str, Interval]:
    """Means over the prompts of each split with their intervals, as `<split>/<figure>`.

    **Arguments:** `k`: the largest of pass@k.

    `pass_at_<k>`: share of prompts that k samples solve, without bias from all of a prompt's;
    `distinct`: different texts among a prompt's samples, as a share; `entropy`: of a whole answer,
    in nats; `right_change`: Δ log π of the right answers of the model before, in nats;
    `right_fallen`: share of prompts whose right answers have not risen.
    """
    figures: dict[str, Interval] = {}
    for split in dict.fromkeys(row.split for row in scores):
        own = [row for row in scores if row.split == split]
        for level in pass_levels(k):
            passed = [pass_at_k(row.samples, row.right, level) for row in own]
            figures[f"{split}/pass_at_{level}"] = _mean(passed)
        figures[f"{split}/distinct"] = _mean([row.distinct / row.samples for row in own])
        figures[f"{split}/entropy"] = _mean([row.entropy for row in own])
        moved = [row.change for row in changes if row.split == split]
        if moved:
            figures[f"{split}/right_change"] = _mean(moved)
            figures[f"{split}/right_fallen"] = _mean([float(change <= 0) for change in moved])
    return figures


def displacement_figures(
    rows: Sequence[QuestionDisplacement], epsilon: float
) -> dict[str, Interval]:
    """Share of questions lazily displaced by one update, and mean Δ log π of right answers."""
    if not rows:
        return {}
    return {
        LAZY_SHARE: _mean([float(row.mean <= epsilon) for row in rows]),
        LAZY_CHANGE: _mean([row.mean for row in rows]),
    }


def pass_names(figures: Sequence[str], split: str) -> list[str]:
    """The figures pass@k of a split among others, by rising k."""
    start = f"{split}/pass_at_"
    names = [name for name in figures if name.startswith(start)]
    return sorted(names, key=lambda name: int(name.removeprefix(start)))


def splits_of(figures: Sequence[str]) -> list[Split]:
    """The splits that figures are there of."""
    splits: tuple[Split, ...] = ("train", "heldout")
    return [split for split in splits if any(name.startswith(f"{split}/") for name in figures)]


def _mean(values: Sequence[float]) -> Interval:
    return mean_interval(np.array(values, dtype=float))
