"""A scheduler's notice: on the first SIGTERM a training saves its state before it ends.

Slurm, before it takes a node back, sends SIGTERM to every process of a step, Kubernetes to the
first one of a pod. Where DYNOLAB_GRACE_SECONDS is set, child processes are shielded from it
(`tasks.runtime.system.child`), and the process that started them passes it on in its own way.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

log = logging.getLogger(__name__)


class Notice:
    """While the block runs, SIGTERM does not end this process; `check` does once time is up.

    **Arguments:**

    - `seconds`: how long; 0: SIGTERM ends the process at once, as it does without a block.
    - `stop`: a file that is made, for others to see that they shall end.

    The block calls `check` now and then, and `hand_on` when it has saved its state.
    """

    def __init__(self, seconds: float, stop: Path | None = None) -> None:
        self._seconds, self._stop = seconds, stop
        self._came: float | None = None  # when the first SIGTERM came, by the monotonic clock
        # Only the main thread may set handlers, and only it receives signals.
        self._listens = seconds > 0 and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Notice:
        if self._listens:
            self._before = signal.signal(signal.SIGTERM, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        if self._listens:
            signal.signal(signal.SIGTERM, self._before)

    def check(self) -> None:
        """Calls `hand_on` if the time is up."""
        if self._came is not None and time.monotonic() > self._came + self._seconds:
            log.warning("nothing was saved in %g s", self._seconds)
            self.hand_on()

    def hand_on(self) -> None:
        """If SIGTERM came, sends it again to the handler that was there before the block."""
        if self._came is not None:
            signal.signal(signal.SIGTERM, self._before)
            os.kill(os.getpid(), signal.SIGTERM)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._came is not None:  # Slurm sends it again when the node is needed
            return
        self._came = time.monotonic()
        if self._stop is not None:
            self._stop.touch()


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Make SIGTERM raise KeyboardInterrupt as Ctrl-C does, so that all that was started ends."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and only it receives signals
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
