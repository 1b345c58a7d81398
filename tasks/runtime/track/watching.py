"""Who else looks at a training's metrics while it runs, and may end it early."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from dynolab.errors import Pruned

if TYPE_CHECKING:
    from tasks.runtime.track.tail import MetricLine

Watcher = Callable[[str, "MetricLine"], None]
"""Is told a stage's name and each line of its metrics; raises `Pruned` to end the training."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Stages that run in the block are watched."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


class Watched:
    """One training, as the watcher of its flow sees it; made on the flow's own thread.

    What the watcher decides while lines are read on another thread, the training's thread learns
    from `check`. A training in this process has no such moment, and comes to its end.
    """

    def __init__(self, stage: str) -> None:
        self._stage, self._watcher = stage, _watcher.get()
        self._pruned: Pruned | None = None

    def __call__(self, line: MetricLine) -> None:
        """Shows the watcher one line."""
        if self._watcher is None or self._pruned is not None:
            return
        try:
            self._watcher(self._stage, line)
        except Pruned as pruned:
            self._pruned = pruned

    def check(self) -> None:
        """Raises `Pruned` where the watcher has ended the training."""
        if self._pruned is not None:
            raise self._pruned
