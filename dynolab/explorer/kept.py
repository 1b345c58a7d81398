"""Files in which answers to questions are kept, so that each is computed once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

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
