"""Limits the requests per minute of all threads together."""

from __future__ import annotations

import threading
import time


class Clock:
    """Time that passes, and waiting that another thread can end."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def now(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Waits, or returns at once after `stop`."""
        self._stopped.wait(seconds)

    def stop(self) -> None:
        """Ends all waiting."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        """Whether waiting has been ended."""
        return self._stopped.is_set()


class Pace:
    """Requests start `60 / per_minute` seconds apart, or later where the server asks for it."""

    def __init__(self, per_minute: float, clock: Clock) -> None:
        self._interval, self._clock = 60 / per_minute, clock
        self._next = clock.now()
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Returns when the next request may start."""
        with self._lock:
            start = max(self._next, self._clock.now())
            self._next = start + self._interval
        early = start - self._clock.now()
        if early > 0:
            self._clock.sleep(early)

    def hold(self, seconds: float) -> None:
        """No request that has no start yet starts before so many seconds are over."""
        with self._lock:
            self._next = max(self._next, self._clock.now() + seconds)
