"""Files that keep what was computed, and a thread that computes while the page is read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from dynolab.data.rows import Row
from dynolab.explorer.step import Asked


def file_of(folder: Path, suffix: str, result: str, step: int, asked: Asked, *rows: Row) -> Path:
    """The file that holds what was computed from these rows at a step of a training's result."""
    objective = "" if asked.objective is None else asked.objective.model_dump_json()
    parts = (result, str(step), asked.metric, objective)
    text = "\0".join((*parts, *(row.model_dump_json() for row in rows)))
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()}{suffix}"


def write_whole(file: Path, write: Callable[[Path], object]) -> None:
    """Writes a file whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}{file.suffix}")
    write(part)
    part.replace(file)


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
