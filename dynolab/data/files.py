"""Files that a study names: where they lie, and what their bytes hash to."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dynolab.errors import reading


def named_path(field: str, name: str | None) -> Path:
    """The path that a setting names; `ConfigError` for a `~user` whom nobody knows."""
    with reading(field, name, "name a path from the root or from here"):
        return Path(name or "").expanduser()


def file_digest(field: str, file: Path) -> bytes:
    """The sha256 of a file's bytes; `ConfigError` for one that cannot be read."""
    with reading(field, str(file), "give a file that you can read"), file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").digest()
