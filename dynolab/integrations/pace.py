"""When further work is due in somebody's training, so that it takes at most a share of its time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dynolab import distributed
from dynolab.errors import check_settings


class Pace:
    """Plans work by its measured seconds, or every so many steps.

    **Arguments:**

    - `share`: of the training's own seconds, without this work, that the work may take. The first
      step's work is made in any case; it measures the seconds.
    - `every`: steps between two works, in place of a share.

    **Raises:** `ConfigError` for a share that is not above 0, and for less than one step.
    """

    def __init__(self, share: float, every: int | None) -> None:
        check_settings(
            (every is not None and every < 1, "every", every, "must be 1 optimizer step or more"),
            (not 0 < share < math.inf, "share", share, "must be above 0, such as 0.1"),
        )
        self.share, self.every = share, every
        self.begin(0)

    def begin(self, step: int) -> None:
        """A training begins, or goes on, at a step."""
        self.spent, self._began = 0.0, time.perf_counter()
        self._first = self._next = step
        self._last: float | None = None  # seconds of the last work

    def due(self, step: int) -> bool:
        """Whether work is due at a step; all ranks call it together and get the same."""
        if self.every:
            return step % self.every == 0
        if step < self._next:
            return False
        if self._last is not None:
            # A training's first steps are slow: what was planned by them may come too early.
            steps, _ = self._steps_until_due(step)
            self._next = step + steps
        return step >= self._next

    @contextmanager
    def working(self) -> Iterator[None]:
        """Counts the seconds of a part of the work."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent += time.perf_counter() - began

    def plan(self, step: int, last: float) -> float:
        """Plans the work after that of a step which has ended; all ranks call it together.

        The next one is due n steps on, where all work, with it, is within the share of the
        training's own seconds: `spent + last <= share · (plain + n · seconds of a plain step)`.

        **Arguments:** `last`: seconds of the step's work.

        **Returns:** seconds of a step without the work.
        """
        self._last = last
        steps, a_step = self._steps_until_due(step + 1)
        self._next = step + 1 + steps
        return a_step

    def _steps_until_due(self, step: int) -> tuple[int, float]:
        """Steps until further work is within its share, and seconds of one without work.

        **Arguments:** `step`: the number of steps made.
        """
        plain = time.perf_counter() - self._began - self.spent
        # All ranks plan the same, by the slowest work and the fastest training.
        ranks = distributed.gather((self.spent, self._last or 0.0, plain))
        spent, last = max(rank[0] for rank in ranks), max(rank[1] for rank in ranks)
        plain = min(rank[2] for rank in ranks)
        a_step = max(plain / (step - self._first), 1e-9)
        lacking = (spent + last) / self.share - plain
        return max(0, math.ceil(lacking / a_step - 0.01)), a_step
