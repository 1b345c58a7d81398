"""Resident memory of processes while something runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psutil

PERIOD_SECONDS = 0.005


def resident() -> int:
    """Bytes of this process."""
    return int(psutil.Process().memory_info().rss)


def own() -> int:
    """Bytes of this process that no file holds: pages of mapped files are dropped where others need
    memory."""
    return _own(psutil.Process())


def own_of_children() -> int:
    """The same of all processes that this one has started."""
    return sum(map(_own, psutil.Process().children(recursive=True)))


def _own(process: psutil.Process) -> int:
    try:
        memory = process.memory_info()
    except psutil.NoSuchProcess:
        return 0
    return int(memory.rss - memory.shared)


def peak_above_start(
    work: Callable[[], object],
    of: Callable[[], int] = resident,
    every_seconds: float = PERIOD_SECONDS,
) -> int:
    """Most bytes while `work` ran, above those before it."""
    start = most = of()
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(every_seconds):
            most = max(most, of())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        ended.set()
        watcher.join()
    return most - start
