"""Limits the total requests per minute of all threads."""

from __future__ import annotations

import threading
import time


class Clock:
    """Monotonic time, and sleep that another thread can interrupt."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def now(self) -> float:
        """Seconds of a monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Waits; returns immediately after `stop`."""
        self._stopped.wait(seconds)

    def stop(self) -> None:
        """Wakes all sleeping threads, and makes later sleeps return immediately."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()


class Pace:
    """Starts requests `60 / per_minute` seconds apart, or later if the server asks for it."""

    def __init__(self, per_minute: float, clock: Clock) -> None:
        self._interval, self._clock = 60 / per_minute, clock
        self._next = clock.now()
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Blocks until the next request may start."""
        with self._lock:
            start = max(self._next, self._clock.now())
            self._next = start + self._interval
        early = start - self._clock.now()
        if early > 0:
            self._clock.sleep(early)

    def hold(self, seconds: float) -> None:
        """Delays all requests without a start time by at least this many seconds."""
        with self._lock:
            self._next = max(self._next, self._clock.now() + seconds)
