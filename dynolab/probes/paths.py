"""Learning paths: log-probabilities of every kind of answer over training, and what they show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from dynolab.data.rows import Split
from dynolab.results.study import ARGMAX, PairChange, ProbeScore
from dynolab.statistics import Interval, mean_interval


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
    step_index = dict(zip(steps, range(len(steps)), strict=True))
    pair_index = dict(zip(pairs, range(len(pairs)), strict=True))
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


def complete_pairs(scores: Sequence[ProbeScore]) -> list[ProbeScore]:
    """Scores of the pairs of which both answers were scored.

    Where one exceeds the context it is missing, and trainings on pairs leave its pair out. All
    scores, where no rejected answer was watched.
    """
    chosen = {(score.split, score.pair_id) for score in scores if score.kind == "chosen"}
    rejected = {(score.split, score.pair_id) for score in scores if score.kind == "rejected"}
    if not rejected:
        return list(scores)
    both = chosen & rejected
    return [score for score in scores if (score.split, score.pair_id) in both]


def pair_changes(paths: LearningPaths, prompts: Mapping[str, str]) -> list[PairChange]:
    """Changes of every pair whose chosen answer was probed, the largest fall first.

    **Arguments:** `prompts`: by pair id; pairs may be missing.
    """
    pairs = len(paths.pairs)
    chosen = _changes(paths.logp.get("chosen"), pairs)
    rejected = _changes(paths.logp.get("rejected"), pairs)
    gap = _changes(paths.gap, pairs)
    rows = []
    for i, pair in enumerate(paths.pairs):
        if np.isfinite(chosen[i]):
            row = PairChange(
                pair_id=pair,
                prompt=prompts.get(pair),
                chosen=float(chosen[i]),
                rejected=_finite(rejected[i]),
                margin=_finite(chosen[i] - rejected[i]),
                gap=_finite(gap[i]),
            )
            rows.append(row)
    return sorted(rows, key=lambda row: row.chosen)


def _changes(path: Float[ndarray, "steps pairs"] | None, pairs: int) -> Float[ndarray, " pairs"]:
    return np.full(pairs, np.nan) if path is None else change(path)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


GAP = "gap"
"""The kind of events of the gap `log π(y*) − log π(y⁺)`."""

What = Literal["peaks", "falls below its start", "exceeds its start"]


@dataclass(frozen=True)
class Event:
    """A statistically significant event of a kind's mean over pairs.

    `before` and `after` are means over pairs with 95% intervals, nats. For a peak: the rise before
    and the fall after it. For a crossing: the change since the start, at the step and at the end.
    """

    step: int
    kind: str
    what: What
    before: Interval
    after: Interval

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "step": self.step,
            "kind": self.kind,
            "what": self.what,
            "before": self.before.as_dict(),
            "after": self.after.as_dict(),
        }


def events_of(paths: LearningPaths) -> tuple[Event, ...]:
    """All events of a training, in order of step.

    - A kind *peaks* where its mean is largest, if the intervals of the rise before lie above zero
      and of the fall after below; both take the peak's step from the other half of the pairs
      (`peak_change`), so that noise makes no peak.
    - It *falls below its start* at the first step from which the interval of
      `log π_t(y) − log π_0(y)` stays below zero up to the end.
    - The gap *exceeds its start* at the first step where the interval of its change lies above
      zero, whether or not it stays there.

    Intervals are per step, without correction for several steps.
    """
    events: list[Event] = []
    for kind in paths.logp:
        events += _kind_events(paths, kind)
    if paths.gap is not None:
        events += _gap_events(paths, paths.gap)
    return tuple(sorted(events, key=lambda event: event.step))


def _kind_events(paths: LearningPaths, kind: str) -> Iterator[Event]:
    path = paths.logp[kind]
    rise, fall = map(mean_interval, peak_change(path))
    if rise.low > 0 and fall.high < 0:
        means = [mean_interval(row).mean for row in path]
        yield Event(int(paths.steps[int(np.nanargmax(means))]), kind, "peaks", rise, fall)
    below = np.array([interval.high < 0 for interval in _since_start(path)])
    lasting = np.logical_and.accumulate(below[::-1])[::-1]
    yield from _crossing(paths, kind, path, "falls below its start", lasting)


def _gap_events(paths: LearningPaths, gap: Float[ndarray, "steps pairs"]) -> Iterator[Event]:
    above = np.array([interval.low > 0 for interval in _since_start(gap)])
    yield from _crossing(paths, GAP, gap, "exceeds its start", above)


def _crossing(
    paths: LearningPaths,
    kind: str,
    path: Float[ndarray, "steps pairs"],
    what: What,
    crossed: ndarray,
) -> Iterator[Event]:
    if crossed.any():
        first = int(np.argmax(crossed))
        at_step = mean_interval(path[first] - path[0])
        yield Event(int(paths.steps[first]), kind, what, at_step, mean_interval(change(path)))


def _since_start(path: Float[ndarray, "steps pairs"]) -> list[Interval]:
    return [mean_interval(row - path[0]) for row in path]
