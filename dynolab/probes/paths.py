"""Learning paths: log-probabilities of every kind of answer over training, per pair."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from dynolab.data.rows import Split
from dynolab.results.study import ARGMAX, ProbeScore
from dynolab.statistics import mean_interval


@dataclass(frozen=True)
class LearningPaths:
    """Log-probabilities of one training on one split, nats summed over an answer's tokens.

    `logp[kind]` has shape (steps, pairs) over the same `steps` and `pairs` for all kinds, so that
    differences between kinds are paired; NaN where a pair lacks the kind. The kind `argmax` is y*.
    """

    steps: Int[ndarray, " steps"]
    pairs: tuple[str, ...]
    logp: dict[str, Float[ndarray, "steps pairs"]]

    @property
    def gap(self) -> Float[ndarray, "steps pairs"] | None:
        """`log π(y*) − log π(y⁺)` along the chosen answer: `squeeze/gap`, at least 0."""
        if ARGMAX not in self.logp or "chosen" not in self.logp:
            return None
        return self.logp[ARGMAX] - self.logp["chosen"]

    def since_start(self, kind: str) -> Float[ndarray, "steps pairs"]:
        """`log π_t(y) − log π_0(y)` of every pair."""
        return self.logp[kind] - self.logp[kind][0]


def learning_paths(rows: Iterable[ProbeScore], split: Split = "train") -> LearningPaths | None:
    """The paths of one split; None unless it was probed at two or more steps.

    All steps' means are over the same pairs: a pair that lacks a kind at a step where others have
    it is NaN in that kind at every step. If a step was written twice, the last row counts.
    """
    rows = [row for row in rows if row.split == split]
    steps = sorted({row.step for row in rows})
    pairs = sorted({row.pair_id for row in rows})
    if len(steps) < 2:
        return None
    step_index = {step: i for i, step in enumerate(steps)}
    pair_index = {pair: i for i, pair in enumerate(pairs)}
    logp: dict[str, Float[ndarray, "steps pairs"]] = {}

    def put(kind: str, row: ProbeScore, value: float) -> None:
        if kind not in logp:
            logp[kind] = np.full((len(steps), len(pairs)), np.nan)
        logp[kind][step_index[row.step], pair_index[row.pair_id]] = value

    for row in rows:
        put(row.kind, row, row.logp)
        if row.kind == "chosen" and row.argmax_logp is not None:
            put(ARGMAX, row, row.argmax_logp)
    for values in logp.values():
        missing = np.isnan(values)
        values[:, (missing & ~missing.all(axis=1, keepdims=True)).any(axis=0)] = np.nan
    return LearningPaths(np.array(steps), tuple(pairs), logp)


def change(path: Float[ndarray, "steps pairs"]) -> Float[ndarray, " pairs"]:
    """`x_i(T) − x_i(0)` of every pair, nats."""
    return path[-1] - path[0]


def peak_change(
    path: Float[ndarray, "steps pairs"],
) -> tuple[Float[ndarray, " pairs"], Float[ndarray, " pairs"]]:
    """Rise `x_i(s) − x_i(0)` up to the peak and fall `x_i(T) − x_i(s)` after it, of every pair.

    The peak step `s = argmax_t mean_j x_j(t)` of a pair is taken from the other half of the pairs
    (even or odd ones). Taken from the same pairs, the peak would select noise, and a random walk
    would show a rise and a fall.
    """
    pairs = path.shape[1]
    half = np.arange(pairs) % 2
    peak = np.zeros(pairs, dtype=int)
    for side in (0, 1):
        other = path[:, half != side] if pairs > 1 else path
        means = np.array([mean_interval(row).mean for row in other])
        if np.isfinite(means).any():
            peak[half == side] = int(np.nanargmax(means))
    top = path[peak, np.arange(pairs)]
    return top - path[0], path[-1] - top
