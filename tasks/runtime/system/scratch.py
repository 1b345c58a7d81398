"""Work folders of running stages; the next stage removes those of killed processes."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """Create a folder `parent/name`; the end of the block deletes it.

    Its owner holds a lock on `parent/name.lock`, which the kernel releases however the owner ends.
    A folder whose lock is free is abandoned.
    """
    parent.mkdir(parents=True, exist_ok=True)
    folder, lock = parent / name, parent / f"{name}.lock"
    with _take_lock(parent, lock):
        try:
            folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _take_lock(parent: Path, lock: Path) -> IO[str]:
    """Remove abandoned folders, then create and take the lock, all under a lock on `parent`."""
    parent_lock = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(parent_lock, fcntl.LOCK_EX)
        _remove_abandoned(parent)
        lock_file = lock.open("w")
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        return lock_file
    finally:
        os.close(parent_lock)


def _remove_abandoned(parent: Path) -> None:
    for lock in parent.glob("*.lock"):
        with lock.open("a") as probe:  # "a": no error if it is deleted meanwhile
            try:
                fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink(missing_ok=True)
