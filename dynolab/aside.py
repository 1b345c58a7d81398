"""Files that nobody sees half written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4


def write_aside(file: Path, write: Callable[[Path], object], folder: Path | None = None) -> None:
    """Writes a file under a hidden name and moves it into place, so that no reader sees half of it.

    **Arguments:** `folder`: where it is written, on the same file system, which is not made where
    it is gone; default: the file's, which is made.
    """
    if folder is None:
        folder = file.parent
        folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{uuid4().hex}{file.suffix}"
    try:
        write(part)
        file.parent.mkdir(parents=True, exist_ok=True)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def write_text_aside(file: Path, text: str, folder: Path | None = None) -> None:
    """Writes a text in UTF-8, likewise."""
    write_aside(file, lambda part: part.write_text(text, encoding="utf-8"), folder)
