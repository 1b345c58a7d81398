"""Resident memory of this process while something runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psutil

PERIOD_SECONDS = 0.005


def peak_above_start(work: Callable[[], object]) -> int:
    """Most bytes resident while `work` ran, above those before it."""
    process = psutil.Process()
    start = most = process.memory_info().rss
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(PERIOD_SECONDS):
            most = max(most, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        ended.set()
        watcher.join()
    return most - start
