"""A real disk so small that it can be filled."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A real disk of so many bytes."""
    folder.mkdir()
    mounted = (
        os.geteuid() == 0
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
            capture_output=True,
        ).returncode
        == 0
    )
    if not mounted:
        pytest.skip("a small disk of its own can be mounted by root alone")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """The disk has no room left within the block."""
    ballast = disk / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            while file.write(b"\0" * 4096) == 4096:
                pass
    except OSError:
        pass  # that was the last of it
    try:
        yield
    finally:
        ballast.unlink()
