"""What happens along learning paths, and at which step: peaks, falls, squeezing."""

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
    """Something that the mean over pairs of a kind does at a step, with certainty.

    `before` and `after` are means over pairs with 95% intervals, nats. Of a peak: the rise up to
    it and the fall after it. Of a crossing: the change since the start at the step and at the end.
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

    - A kind *peaks* where its mean is largest, if the rise before is above zero and the fall after
      it below, both with their intervals; these take the peak's step from the other half of the
      pairs (`peak_change`), so that noise makes no peak.
    - It *falls below its start* at the first step from which on, up to the end, the interval of
      `log π_t(y) − log π_0(y)` lies below zero.
    - The gap *exceeds its start* at the first step where the interval of its change lies above
      zero, whether or not it stays there.

    Every interval is of one step alone.
    """
    events = [event for kind in paths.logp for event in _of_kind(paths, kind)]
    if paths.gap is not None:
        events += _widening(paths, paths.gap)
    return tuple(sorted(events, key=lambda event: event.step))


def _of_kind(paths: LearningPaths, kind: str) -> Iterator[Event]:
    path = paths.logp[kind]
    rise, fall = (mean_interval(values) for values in peak_change(path))
    if rise.low > 0 and fall.high < 0:
        means = [mean_interval(row).mean for row in path]
        yield Event(int(paths.steps[int(np.nanargmax(means))]), kind, "peaks", rise, fall)
    below = np.array([interval.high < 0 for interval in _since_start(path)])
    lasting = np.logical_and.accumulate(below[::-1])[::-1]
    yield from _crossing(paths, kind, path, "falls below its start", lasting)


def _widening(paths: LearningPaths, gap: Float[ndarray, "steps pairs"]) -> Iterator[Event]:
    above = np.array([interval.low > 0 for interval in _since_start(gap)])
    yield from _crossing(paths, GAP, gap, "exceeds its start", above)


def _crossing(
    paths: LearningPaths, kind: str, path: Float[ndarray, "steps pairs"], what: What, at: ndarray
) -> Iterator[Event]:
    if at.any():
        first = int(np.argmax(at))
        there = mean_interval(path[first] - path[0])
        yield Event(int(paths.steps[first]), kind, what, there, mean_interval(change(path)))


def _since_start(path: Float[ndarray, "steps pairs"]) -> list[Interval]:
    return [mean_interval(row - path[0]) for row in path]
