"""A thread that computes while the page is read."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock


class Background:
    """Does one piece of work after the other, in a thread of its own."""

    def __init__(self) -> None:
        self._lock, self._worker = Lock(), ThreadPoolExecutor(1)
        self._jobs: dict[Hashable, Future[None]] = {}

    def begin(self, name: Hashable, work: Callable[[], None]) -> None:
        """Begins work, unless it is under way. **Raises** what ended an earlier attempt, once."""
        with self._lock:
            job = self._jobs.get(name)
            if job is not None and job.done() and (error := job.exception()) is not None:
                del self._jobs[name]
                raise error
            if job is None or job.done():
                self._jobs[name] = self._worker.submit(work)
