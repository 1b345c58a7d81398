"""Learning paths: how the likelihood of every kind of answer moves while a model trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.errors import ConfigError

ARGMAX, GAP = "argmax", "gap"
"""Kinds that are measured along with `chosen`: y*, and log-probability of y* minus chosen's."""

Scores = Mapping[str, Any]
Values = Float[ndarray, "steps pairs"]


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval, in nats, over `pairs` pairs."""

    mean: float
    low: float
    high: float
    pairs: int

    @property
    def sign(self) -> int:
        """+1 or −1 where the interval lies on one side of zero, else 0."""
        return int(self.low > 0) - int(self.high < 0)


@dataclass(frozen=True)
class LearningPath:
    """Log-probabilities of one kind: `logps[step, pair]` in nats, at the probed `steps`."""

    split: str
    kind: str
    steps: tuple[int, ...]
    pair_ids: tuple[str, ...]
    logps: Values

    def band(self, level: float = 0.95) -> list[Interval]:
        """Mean and confidence interval over pairs at every probed step."""
        return [interval(values, level) for values in self.logps]

    def gain(self, since: int | None = None, until: int | None = None) -> Float[ndarray, pairs]:
        """What each pair gained between two probed steps, by default the first and the last."""
        first = self._index(self.steps[0] if since is None else since)
        last = self._index(self.steps[-1] if until is None else until)
        return self.logps[last] - self.logps[first]

    def _index(self, step: int) -> int:
        if step not in self.steps:
            raise ConfigError("step", step, f"was not probed; choose one of {list(self.steps)}")
        return self.steps.index(step)


@dataclass(frozen=True)
class RiseFall:
    """A path's way up to its highest mean and down from there, both measured on equal pairs."""

    peak_step: int
    rise: Interval
    fall: Interval

    @property
    def shows(self) -> bool:
        """Whether it rose and then fell back, each beyond its interval."""
        return self.rise.sign > 0 and self.fall.sign < 0


def learning_paths(scores: Iterable[Scores]) -> dict[tuple[str, str], LearningPath]:
    """Paths by (split, kind) from the lines of `probes.jsonl`, `argmax` and `gap` included.

    A pair that is not scored at every probed step of its kind is left out, so that every step's
    mean is over the same pairs. Where a step was written twice the last line counts.
    """
    table: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    for score in scores:
        for kind, value in _values(score):
            steps = table.setdefault((score["split"], kind), {})
            steps.setdefault(int(score["step"]), {})[score["pair_id"]] = value
    return {key: _path(key, steps) for key, steps in table.items()}


def rise_then_fall(path: LearningPath, level: float = 0.95) -> RiseFall:
    """Measures a path from its start to its peak and from the peak to its end.

    The peak is that of the mean; choosing it makes `rise` and `fall` slightly optimistic, of the
    order of the noise in the mean.
    """
    peak = path.steps[int(path.logps.mean(1).argmax())]
    return RiseFall(
        peak_step=peak,
        rise=interval(path.gain(until=peak), level),
        fall=interval(path.gain(since=peak), level),
    )


def paired_gain_difference(one: LearningPath, other: LearningPath, level: float = 0.95) -> Interval:
    """How much more one kind gained than another over training, pair by pair."""
    common = sorted(set(one.pair_ids) & set(other.pair_ids))
    if not common:
        raise ConfigError(
            "kinds", (one.kind, other.kind), "share no pairs; compare kinds of the same split"
        )
    gains = [path.gain()[[path.pair_ids.index(name) for name in common]] for path in (one, other)]
    return interval(gains[0] - gains[1], level)


def interval(values: Float[ndarray, pairs], level: float = 0.95, draws: int = 2000) -> Interval:
    """Mean over pairs with a percentile bootstrap interval, seeded: equal values, equal interval.

    Efron, *Bootstrap methods* (1979). For fewer than about ten values it is too narrow.
    """
    count = len(values)
    rng = np.random.default_rng(0)
    means = values[rng.integers(count, size=(draws, count))].mean(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(values.mean()), float(low), float(high), count)


def _values(score: Scores) -> list[tuple[str, float]]:
    values = [(score["kind"], score["logp"])]
    if "argmax_logp" in score:
        values.append((ARGMAX, score["argmax_logp"]))
        values.append((GAP, score["argmax_logp"] - score["logp"]))
    return values


def _path(key: tuple[str, str], steps: Mapping[int, Mapping[str, float]]) -> LearningPath:
    order = sorted(steps)
    everywhere = set.intersection(*(set(pairs) for pairs in steps.values()))
    names = [name for name in steps[order[0]] if name in everywhere]
    logps = np.array([[steps[step][name] for name in names] for step in order], dtype=np.float64)
    return LearningPath(key[0], key[1], tuple(order), tuple(names), logps)
