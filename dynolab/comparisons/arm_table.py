"""Figures of arms, one number each: aggregated over the prompts of a run, then over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.data.rows import Split
from dynolab.grouping import grouped
from dynolab.results.groups import (
    CompletionForce,
    LikelihoodChange,
    PromptScore,
    QuestionDisplacement,
    TokenChoice,
)
from dynolab.rollouts.passes import pass_at_k, pass_levels
from dynolab.statistics import (
    Interval,
    clear,
    column,
    mean_interval,
    rank_correlation,
    ratio_interval,
)

LAZY_SHARE, LAZY_CHANGE = "displaced/share", "displaced/change"
SQUEEZE_INDEX = "squeeze/index"
FROM_RIGHT, FROM_WRONG = "push/right", "push/wrong"
RULE_RANK, RULE_SIGN = "entropy_rule/rank_correlation", "entropy_rule/sign_agreement"
ADVANTAGE_RANK, ADVANTAGE_SIGN = "entropy_advantage/rank_correlation", "entropy_advantage/sign"
PRECISION, RECALL = "tokens/precision", "tokens/recall"
HARMFUL, HARM_FOUND = "tokens/harmful", "tokens/harm_found"

WAYS = ("by_habit", "by_other_way")
"""Figures of the world of two strategies."""

LEAST_COUNT = 10
"""Pairs or prompts below which no difference is called clear: intervals over seeds know nothing of
other prompts."""

START = "before"
"""Name, beside the arms, of the models that they start from."""


class ArmTable:
    """Figures by arm and seed, their means over seeds, and differences paired by seed.

    **Arguments:**

    - `values`: for every arm, one map of figures per seed, seeds in the same order.
    - `within`: with one seed, every arm's figures with intervals over prompts, in place of
      intervals over seeds. Differences then have none: one training is not a sample.
    - `counts`: the fewest pairs or prompts that a figure is the mean over, where known.
    """

    def __init__(
        self,
        values: Mapping[str, Sequence[Mapping[str, float]]],
        within: Mapping[str, Mapping[str, Interval]] | None = None,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        self._values, self._within, self._counts = values, within or {}, counts or {}

    @property
    def names(self) -> list[str]:
        """All figures that any arm has."""
        names: dict[str, None] = {}
        for seeds in self._values.values():
            for figures in seeds:
                names |= dict.fromkeys(figures)
        return list(names)

    def values(self, arm: str, name: str) -> Float[ndarray, " seeds"]:
        """One number per seed; NaN where it was not measured."""
        return np.array([figures.get(name, np.nan) for figures in self._values[arm]], dtype=float)

    def mean(self, arm: str, name: str) -> Interval:
        """Mean over seeds with its t-interval; for one seed, the interval over prompts if known."""
        over_prompts = self._within.get(arm, {})
        return over_prompts[name] if name in over_prompts else self.over_seeds(arm, name)

    def over_seeds(self, arm: str, name: str) -> Interval:
        """Mean over seeds with its t-interval; one seed has no interval."""
        return mean_interval(self.values(arm, name))

    def difference(self, arm: str, other: str, name: str) -> Interval:
        """Mean over seeds of the difference between two arms' figures, with its t-interval."""
        return self.against(other).mean(arm, name)

    def means(self, arms: Sequence[str]) -> dict[str, Interval]:
        """`<arm>/<figure>`: the means that were measured."""
        measured = {}
        for arm in arms:
            for name in self.names:
                mean = self.mean(arm, name)
                if mean.n:
                    measured[f"{arm}/{name}"] = mean
        return measured

    def few(self, name: str) -> int:
        """How many pairs or prompts a figure is of, if fewer than `LEAST_COUNT`; else 0."""
        count = self._counts.get(name, 0)
        return count if count < LEAST_COUNT else 0

    def decides(self, change: Interval, name: str) -> bool:
        """Whether a figure's difference is clear, and not of a few pairs or prompts alone."""
        return clear(change) and not self.few(name)

    def against(self, other: str) -> ArmTable:
        """The table of differences from an arm, seed by seed."""
        base_seeds = self._values[other]
        differences = {}
        for arm, seeds in self._values.items():
            paired = zip(seeds, base_seeds, strict=True)
            differences[arm] = [_difference(figures, base) for figures, base in paired]
        return ArmTable(differences)


def _difference(figures: Mapping[str, float], base: Mapping[str, float]) -> dict[str, float]:
    """The differences of the figures that both have."""
    return {name: figures[name] - base[name] for name in figures if name in base}


def evaluation_figures(
    scores: Sequence[PromptScore], changes: Sequence[LikelihoodChange] = (), *, k: int
) -> dict[str, Interval]:
    """Means over the prompts of each split with their intervals, as `<split>/<figure>`.

    `pass_at_<k>`: share of prompts that k samples solve, estimated without bias from all of a
    prompt's samples; `distinct`: share of different texts among a prompt's samples; `entropy`:
    entropy of a whole answer, in nats; `tokens`: mean length; `repeaters`: share of samples that
    repeat themselves; `by_habit` and `by_other_way`: share of samples that take each of two
    strategies, in their world; `right_change`: Δ log π, in nats, of right answers sampled
    before training; `right_fallen`: share of prompts whose right answers have not risen.

    **Arguments:** `k`: the largest k of pass@k.
    """
    figures: dict[str, Interval] = {}
    for split in dict.fromkeys(row.split for row in scores):
        prompts = [row for row in scores if row.split == split]
        for level in pass_levels(k):
            solved = [pass_at_k(row.samples, row.right, level) for row in prompts]
            figures[f"{split}/pass_at_{level}"] = mean_interval(solved)
        samples = column(prompts, "samples")
        measured = {
            "distinct": column(prompts, "distinct") / samples,
            "entropy": column(prompts, "entropy"),
            "tokens": column(prompts, "tokens"),
            "repeaters": column(prompts, "repeaters") / samples,
        }
        for way in WAYS:
            counts = column(prompts, way)
            if np.isfinite(counts).any():
                measured[way] = counts / samples
        moved = column([row for row in changes if row.split == split], "change")
        if moved.size:
            measured |= {"right_change": moved, "right_fallen": (moved <= 0).astype(float)}
        for name, values in measured.items():
            figures[f"{split}/{name}"] = mean_interval(values)
    return figures


def displacement_figures(
    rows: Sequence[QuestionDisplacement], epsilon: float
) -> dict[str, Interval]:
    """Share of questions lazily displaced by one update, and mean Δ log π of right answers."""
    if not rows:
        return {}
    means = column(rows, "mean")
    return {
        LAZY_SHARE: mean_interval((means <= epsilon).astype(float)),
        LAZY_CHANGE: mean_interval(means),
    }


def choice_figures(rows: Sequence[TokenChoice]) -> dict[str, Interval]:
    """How well a rule finds the tokens of wrong answers that drag right ones down.

    `precision`: share of the chosen tokens that do; `recall`: share of those that do that are
    chosen; `harmful`: their share of all tokens of wrong answers, which is the precision of a
    random choice; `harm_found`: share of the harm, in nats, that the chosen ones do. Ratios of
    sums over questions with the jackknife's intervals.
    """
    if not rows:
        return {}
    ratios = {
        PRECISION: ("both", "chosen"),
        RECALL: ("both", "harmful"),
        HARMFUL: ("harmful", "wrong"),
        HARM_FOUND: ("harm_chosen", "harm"),
    }
    questions = np.array([row.id for row in rows])
    figures = {}
    for name, (part, total) in ratios.items():
        figures[name] = ratio_interval(column(rows, part), column(rows, total), questions)
    return figures


def completion_figures(rows: Sequence[CompletionForce]) -> dict[str, Interval]:
    """What right and wrong answers of a question do to its right ones in one step.

    Sums over a question's answers, means over questions, in nats per unit of the learning rate. And
    how well two rules tell which answers lower the entropy (`entropy_rule_figures`).
    """
    if not rows:
        return {}
    # A question without right, or without wrong, answers counts with 0.
    right = dict.fromkeys((row.id for row in rows), 0.0)
    wrong = dict(right)
    for row in rows:
        sums = right if row.correct else wrong
        sums[row.id] += row.force
    return {
        FROM_RIGHT: mean_interval([*right.values()]),
        FROM_WRONG: mean_interval([*wrong.values()]),
        **entropy_rule_figures(rows),
    }


def entropy_rule_figures(rows: Sequence[CompletionForce]) -> dict[str, Interval]:
    """Rank correlation with what answers do to the entropy, and how often the sign is right.

    Of S (`EntropyForces.rule`) and of minus the advantage, among a question's answers that are
    pushed; means over questions.
    """
    by_name: dict[str, list[float]] = {}
    for of_question in grouped((row.id, row) for row in rows).values():
        pushed = [row for row in of_question if row.advantage and row.entropy is not None]
        if not pushed:
            continue
        exact = column(pushed, "entropy")
        for rank, sign, rule in (
            (RULE_RANK, RULE_SIGN, column(pushed, "entropy_rule")),
            (ADVANTAGE_RANK, ADVANTAGE_SIGN, -column(pushed, "advantage")),
        ):
            by_name.setdefault(rank, []).append(float(rank_correlation(rule, exact)))
            by_name.setdefault(sign, []).append(float(np.mean(np.sign(rule) == np.sign(exact))))
    return {name: mean_interval(values) for name, values in by_name.items()}


def pass_names(figures: Sequence[str], split: str) -> list[str]:
    """Selects a split's pass@k figures, by ascending k."""
    start = f"{split}/pass_at_"
    levels = [int(name.removeprefix(start)) for name in figures if name.startswith(start)]
    return [f"{start}{level}" for level in sorted(levels)]


def splits_of(figures: Sequence[str]) -> list[Split]:
    """The splits whose prompts were evaluated."""
    splits: tuple[Split, ...] = ("train", "heldout")
    return [split for split in splits if pass_names(figures, split)]
