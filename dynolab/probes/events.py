"""Events along learning paths and their steps: peaks, falls, squeezing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.probes.paths import LearningPaths, change, peak_change
from dynolab.statistics import Interval, mean_interval

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
    events = [event for kind in paths.logp for event in _kind_events(paths, kind)]
    if paths.gap is not None:
        events += _gap_events(paths, paths.gap)
    return tuple(sorted(events, key=lambda event: event.step))


def _kind_events(paths: LearningPaths, kind: str) -> Iterator[Event]:
    path = paths.logp[kind]
    rise, fall = (mean_interval(values) for values in peak_change(path))
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
