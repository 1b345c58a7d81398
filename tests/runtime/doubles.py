"""Tracking and progress that only remember how they were called, and processes that only sleep."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dynolab.data.rows import read_rows
from dynolab.results.study import MetricsLine
from dynolab.store import Store
from tasks.runtime.stage import Platform
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.progress import Progress


class MemoryRun:
    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name, self.options = name, options
        self.run_id: str | None = None
        self.status: str | None = None
        self.tagged: dict[str, str] = dict(options["tags"])
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.folder = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, self.folder)
        self.artifacts: dict[str, bytes] = {}

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        self.logged.append((step, dict(values)))

    @property
    def values(self) -> list[tuple[int, dict[str, float]]]:
        rows = [row for file in self.folder.glob("*.jsonl") for row in read_rows(file, MetricsLine)]
        return [*((row.step, row.metrics) for row in rows), *self.logged]

    def set_tags(self, values: Mapping[str, str]) -> None:
        self.tagged |= values

    def log_artifact(self, file: Path, folder: str) -> None:
        self.artifacts[f"{folder}/{file.name}"] = file.read_bytes()

    def wait_created(self, timeout: float) -> bool:
        self.run_id = f"run-{self.name}"
        return True

    def finish(self, status: str, error: BaseException | None = None) -> None:
        assert self.status is None
        self.status = status


class MemoryTracking:
    def __init__(self) -> None:
        self.runs: list[MemoryRun] = []

    def start_run(self, name: str, **options: Any) -> MemoryRun:
        self.runs.append(MemoryRun(name, options))
        return self.runs[-1]


def memory_platform(home: Path, store: Store | None = None) -> Platform:
    settings = Settings(home=home, store=f"file://{home}/store")
    store = store or Store(settings.store, cache=settings.cache)
    return Platform(settings, store, open_tracking=MemoryTracking, progress=Progress)


@contextmanager
def sleeper(**variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, with these variables beside this process's."""
    process = subprocess.Popen(["sleep", "100"], env=os.environ | variables, start_new_session=True)
    environment = Path(f"/proc/{process.pid}/environ")
    try:
        # Popen returns as soon as exec closes its pipe; the new environment shows a moment later.
        while not all(f"{name}=".encode() in environment.read_bytes() for name in variables):
            time.sleep(0.001)
        yield process
    finally:
        process.kill()
        process.wait()
