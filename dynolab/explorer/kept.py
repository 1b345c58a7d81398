"""A thread that computes while the page is read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Lock

from dynolab.errors import DynolabError


class Background:
    """Does one piece of work after the other, in a thread of its own."""

    def __init__(self) -> None:
        self._lock, self._worker = Lock(), ThreadPoolExecutor(1)
        self._jobs: dict[Hashable, Future[None]] = {}
        self._ahead: set[Hashable] = set()

    def begin(self, name: Hashable, work: Callable[[], None]) -> None:
        """Begins work, unless it is under way. **Raises** what ended an earlier attempt, once."""
        with self._lock:
            job = self._jobs.get(name)
            if job is not None and job.done() and (error := job.exception()) is not None:
                del self._jobs[name]
                raise error
            if job is None or job.done():
                self._jobs[name] = self._worker.submit(work)

    def ahead(self, name: Hashable, pieces: Iterator[Callable[[], object]]) -> None:
        """Does what later clicks may ask for, once for a name.

        Work that is begun meanwhile waits for one piece at most. A piece that fails is skipped: a
        later click that needs it shows the error.
        """
        with self._lock:
            if name in self._ahead:
                return
            self._ahead.add(name)
        self._worker.submit(self._next, pieces)

    def _next(self, pieces: Iterator[Callable[[], object]]) -> None:
        for piece in pieces:
            with suppress(DynolabError):
                piece()
            with suppress(RuntimeError):  # the page is closed
                self._worker.submit(self._next, pieces)  # behind what was begun meanwhile
            return

    def end(self) -> None:
        """Leaves what is not begun; a piece that is under way is completed."""
        self._worker.shutdown(wait=False, cancel_futures=True)
