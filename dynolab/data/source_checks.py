"""Checks the files and data sets that a study names, and pins their revisions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from dynolab.errors import ConfigError, reading
from dynolab.hub import resolve_commit


@dataclass(frozen=True)
class OnDisk:
    """Marks a setting that names a file or folder; `or_name`: or a name on the Hub.

    A study file's relative paths start from the folder that the file is in. A Hub name looks like a
    relative path: with `or_name` it is one if that folder exists, or if it begins with a dot.
    """

    or_name: bool = False

    def beside(self, folder: Path, value: str) -> str:
        """The value as written in a file of `folder`, with that folder in front of relative paths.

        Values that begin with `~` or a variable are left alone.
        """
        path = folder / value
        if not value or "\0" in value or value.startswith(("~", "${")) or Path(value).is_absolute():
            return value
        if self.or_name and not value.startswith(".") and not path.is_dir():
            return value
        return str(path.resolve())


FilePath = Annotated[str, OnDisk()]
FolderOrName = Annotated[str, OnDisk(or_name=True)]


def check_source(config: Any, section: str, **sources: tuple[str, ...]) -> None:
    """Checks that each field is set exactly if the config's source reads it.

    **Arguments:**

    - `config`: has a `source` and the fields.
    - `section`: section of the fields, for messages.
    - `sources`: by field, the sources that read it.

    **Raises:** `ConfigError` for a field that is missing or unused.
    """
    for field, readers in sources.items():
        value = getattr(config, field)
        if (value is not None) != (config.source in readers):
            raise ConfigError(
                f"{section}.{field}",
                value,
                f"set it for source: {' or '.join(readers)}, and for no other",
            )


def named_path(field: str, name: str | None) -> Path:
    """The path that a setting names; `ConfigError` for an empty one and an unknown `~user`."""
    if name == "":
        raise ConfigError(field, name, "is empty; give a path")
    with reading(field, name, "give an absolute path, or one relative to the working directory"):
        return Path(name or "").expanduser()


def file_digest(field: str, file: Path) -> bytes:
    """The sha256 of a file's bytes, or of a folder's files; `ConfigError` if it cannot be read."""
    if file.is_dir():
        names = sorted(path.relative_to(file) for path in file.rglob("*") if path.is_file())
        parts = [str(name).encode() + file_digest(field, file / name) for name in names]
        return hashlib.sha256(b"".join(parts)).digest()
    with reading(field, str(file), "give a file that you can read"), file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").digest()


def named_file(field: str, name: str | None, remedy: str) -> Path:
    """The file that a setting names; `ConfigError` with the remedy if it does not exist."""
    file = named_path(field, name)
    if not file.is_file():
        problem = "is a folder, pipe or device, not a file" if file.exists() else "no such file"
        raise ConfigError(field, name, f"{problem}; {remedy}")
    return file


def dataset_commit(field: str, name: str, revision: str | None) -> str:
    """The commit of a Hub data set, by default that of its main branch."""
    return resolve_commit("dataset", name, revision or "main", field=field)


def pinned(field: str, revision: str, expected: str | None, remedy: str) -> str:
    """Returns the revision; raises `ConfigError` if it is not the expected one."""
    if expected not in (None, revision):
        raise ConfigError(field, expected, f"{remedy}, or clear the revision")
    return revision
