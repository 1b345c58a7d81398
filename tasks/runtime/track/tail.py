"""Follows a growing metrics.jsonl, for progress, the alarm and the flow's watcher."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from dynolab.errors import Pruned

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MetricLine:
    """One line of metrics.jsonl: `time` in unix seconds, `examples` seen so far."""

    step: int
    examples: int
    time: float
    metrics: dict[str, float]


def read_line(text: bytes) -> MetricLine | None:
    """Read a line; None, and a warning, if it is not one of metrics."""
    try:
        row = json.loads(text)
        return MetricLine(row["step"], row["examples"], row["time"], dict(row["metrics"]))
    except (ValueError, TypeError, KeyError) as error:
        log.warning("skipping an invalid line of metrics: %s", error)
        return None


class MetricsTail:
    """Passes each complete line of `path` once to `listeners`.

    A resuming rank program begins with the checkpoint's copy of the file. The tail reads a file
    that was replaced from its beginning.
    """

    def __init__(self, path: Path, *listeners: Callable[[MetricLine], None]) -> None:
        self.path, self.listeners = path, listeners
        self._inode, self._offset = -1, 0

    def poll(self) -> None:
        """Read the lines added since the last poll."""
        if not self.path.exists():
            return
        with self.path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._inode, self._offset = status.st_ino, 0
            stream.seek(self._offset)
            for text in stream:
                if not text.endswith(b"\n"):
                    break  # still being written
                self._offset += len(text)
                if line := read_line(text):
                    for listener in self.listeners:
                        listener(line)


Watcher = Callable[[str, MetricLine], None]
"""Called with a stage's name and each of its metric lines; raises `Pruned` to end the training."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Let `watcher` watch the stages that run in the block."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


class Watched:
    """Passes one training's metric lines to the flow's watcher; create it on the flow's thread.

    The watcher runs on the thread that reads the lines; `check` raises its `Pruned` in the
    training's thread. `stop`: a file that is made then, at which a training in this process ends.
    """

    def __init__(self, stage: str, stop: Path | None = None) -> None:
        self._stage, self._watcher, self._stop = stage, _watcher.get(), stop
        self._pruned: Pruned | None = None

    def __call__(self, line: MetricLine) -> None:
        """Pass one line to the watcher."""
        if self._watcher is None or self._pruned is not None:
            return
        try:
            self._watcher(self._stage, line)
        except Pruned as pruned:
            self._pruned = pruned
            if self._stop is not None:
                self._stop.touch()

    def check(self) -> None:
        """Raise `Pruned` if the watcher has ended the training."""
        if self._pruned is not None:
            raise self._pruned
