"""Sources that a study names: where they lie, and the revision that their content stands at."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from dynolab.errors import ConfigError, reading
from dynolab.hub import resolve_commit


def check_source(config: Any, section: str, **sources: tuple[str, ...]) -> None:
    """Each of these fields is given with the sources that read it, and only there.

    **Arguments:**

    - `config`: has a `source` and the fields.
    - `section`: the fields' own, for messages.
    - `sources`: by field, those that read it.

    **Raises:** `ConfigError` for a field that is missing or has no use.
    """
    for field, readers in sources.items():
        value = getattr(config, field)
        if (value is not None) != (config.source in readers):
            remedy = f"give it with source: {' or '.join(readers)}, and only there"
            raise ConfigError(f"{section}.{field}", value, remedy)


def named_path(field: str, name: str | None) -> Path:
    """The path that a setting names; `ConfigError` for a `~user` whom nobody knows."""
    with reading(field, name, "name a path from the root or from here"):
        return Path(name or "").expanduser()


def file_digest(field: str, file: Path) -> bytes:
    """The sha256 of a file's bytes; `ConfigError` for one that cannot be read."""
    with reading(field, str(file), "give a file that you can read"), file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").digest()


def named_file(field: str, name: str | None, remedy: str) -> Path:
    """The file that a setting names; `ConfigError` with the remedy where there is none."""
    file = named_path(field, name)
    if not file.is_file():
        raise ConfigError(field, name, f"no such file; {remedy}")
    return file


def dataset_commit(field: str, name: str, revision: str | None) -> str:
    """The commit of a Hub data set, by default that of its main branch."""
    return resolve_commit("dataset", name, revision or "main", field=field)


def pinned(field: str, revision: str, expected: str | None, remedy: str) -> str:
    """A content's revision; `ConfigError` where another one is expected of it."""
    if expected not in (None, revision):
        raise ConfigError(field, expected, f"{remedy}, or clear the revision")
    return revision
