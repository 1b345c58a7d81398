"""Follows a growing metrics.jsonl: its lines go to MLflow, the progress and the flow's watcher."""

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
from tasks.runtime.track.tracking import RunTracker

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MetricLine:
    """One line of metrics.jsonl: `time` in unix seconds, `examples` seen so far."""

    step: int
    examples: int
    time: float
    metrics: dict[str, float]


class MetricsTail:
    """Feeds each complete line of `path` once to `tracker` and `on_step`.

    A rank program that resumes replaces the file by the checkpoint's and writes on. The file is
    then read from its beginning, and for each metric only steps beyond the last one fed count.
    """

    def __init__(
        self,
        path: Path,
        tracker: RunTracker,
        on_step: Callable[[MetricLine], None] | None = None,
    ) -> None:
        self.path, self.tracker, self.on_step = path, tracker, on_step
        self._inode, self._offset = -1, 0
        self._last_line = b""  # the line before the offset: differs if the file was rewritten
        self._last_step: dict[str, int] = {}

    def poll(self) -> int:
        """Read what was added since the last poll; returns the number of lines fed."""
        try:
            stream = self.path.open("rb")
        except FileNotFoundError:
            return 0
        with stream:
            status = os.fstat(stream.fileno())
            start = self._offset - len(self._last_line)
            stream.seek(start)
            rewritten = stream.read(len(self._last_line)) != self._last_line
            if status.st_ino != self._inode or rewritten:
                self._inode, self._offset, self._last_line = status.st_ino, 0, b""
                stream.seek(0)
            fed = 0
            for line in stream:
                if not line.endswith(b"\n"):
                    break  # still being written
                self._offset += len(line)
                self._last_line = line
                fed += self._feed(line)
        return fed

    def _feed(self, text: bytes) -> bool:
        try:
            row = json.loads(text)
            line = MetricLine(row["step"], row["examples"], row["time"], row["metrics"])
        except (ValueError, TypeError, KeyError) as error:
            log.warning("a line of %s is left out: %s", self.path, error)
            return False
        new = {
            key: value
            for key, value in line.metrics.items()
            if line.step > self._last_step.get(key, -1)
        }
        if not new:
            return False
        self._last_step.update(dict.fromkeys(new, line.step))
        self.tracker.log_metrics(new, line.step, timestamp_ms=int(line.time * 1000))
        if self.on_step:
            self.on_step(line)
        return True


Watcher = Callable[[str, MetricLine], None]
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
