"""Follows a growing metrics.jsonl; passes its lines to MLflow, progress and the flow's watcher."""

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
    """Passes each complete line of `path` once to `tracker` and `on_step`.

    A resuming rank program replaces the file with the checkpoint's copy and appends to it. The tail
    then reads the file from the beginning and, for each metric, skips steps already passed on.
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
        """Read the lines added since the last poll; returns how many were passed on."""
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
            count = 0
            for line in stream:
                if not line.endswith(b"\n"):
                    break  # still being written
                self._offset += len(line)
                self._last_line = line
                count += self._feed(line)
        return count

    def _feed(self, text: bytes) -> bool:
        try:
            row = json.loads(text)
            line = MetricLine(row["step"], row["examples"], row["time"], row["metrics"])
        except (ValueError, TypeError, KeyError) as error:
            log.warning("skipping an invalid line of %s: %s", self.path, error)
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
    training's thread. A training in this process never calls `check`, and runs to its end.
    """

    def __init__(self, stage: str) -> None:
        self._stage, self._watcher = stage, _watcher.get()
        self._pruned: Pruned | None = None

    def __call__(self, line: MetricLine) -> None:
        """Pass one line to the watcher."""
        if self._watcher is None or self._pruned is not None:
            return
        try:
            self._watcher(self._stage, line)
        except Pruned as pruned:
            self._pruned = pruned

    def check(self) -> None:
        """Raise `Pruned` if the watcher has ended the training."""
        if self._pruned is not None:
            raise self._pruned
