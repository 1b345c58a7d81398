"""The manifest of a committed folder: its files with their hashes, and their provenance."""

from __future__ import annotations

import hashlib
import json
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from platform import python_version
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    NonNegativeInt,
    field_validator,
)

MANIFEST = "manifest.json"
MARKER = "COMMITTED"
LONGEST_NAME, LONGEST_PATH = 255, 1024  # bytes: of a file name on Linux, of a key on S3

# Packages whose version can change a number.
_LIBRARIES = (
    "dynolab",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "deepspeed",
    "peft",
    "datasets",
    "numpy",
)

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def inside(path: str) -> str:
    """Returns the path; ValueError unless it is a relative POSIX path that stays in its folder."""
    parts = path.split("/")
    if "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{path!r} is not a plain relative path")
    longest = max(len(part.encode()) for part in parts)
    if longest > LONGEST_NAME or len(path.encode()) > LONGEST_PATH:
        raise ValueError(f"{path[:40]!r}… is longer than a path may be")
    return path


class FileEntry(BaseModel):
    """Size in bytes and content hash of one file."""

    model_config = ConfigDict(frozen=True)

    size: NonNegativeInt
    sha256: Sha256


class Manifest(BaseModel):
    """The record of one commit. Git revision and library versions are not part of the key."""

    # JSON has no NaN: as strings, non-finite floats survive the round trip.
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    stage: str
    key: Sha256
    version: int
    files: dict[Annotated[str, AfterValidator(inside)], FileEntry] = {}
    parents: dict[str, Sha256] = {}
    config: dict[str, JsonValue] = {}
    metrics: dict[str, float] = {}
    step: int | None = None
    world_size: int | None = None
    zero_stage: int | None = None
    extra: dict[str, JsonValue] = {}
    libraries: dict[str, str] = {}
    git_revision: str | None = None
    mlflow_run_id: str | None = None
    created: datetime = Field(default_factory=lambda: datetime.now(UTC))

    @field_validator("files")
    @classmethod
    def _paths_do_not_clash(cls, files: dict[str, FileEntry]) -> dict[str, FileEntry]:
        """No file may have the path of the manifest or of another file's folder."""
        folders = {str(parent) for path in files for parent in PurePosixPath(path).parents}
        clashing = sorted(files.keys() & (folders | {MANIFEST}))
        if clashing:
            raise ValueError(f"{clashing[0]!r} is the manifest or a folder, not a file")
        return files

    @property
    def digest(self) -> str:
        """Content digest: sha256 over the sorted (path, size, sha256) only."""
        rows = sorted((path, entry.size, entry.sha256) for path, entry in self.files.items())
        return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every file by path."""
        return {path: entry.size for path, entry in self.files.items()}

    def to_bytes(self) -> bytes:
        """The manifest as stored bytes."""
        return self.model_dump_json(indent=2).encode()


class Marker(BaseModel):
    """Content of COMMITTED: the committed attempt, its manifest's hash and signature."""

    attempt: Annotated[str, Field(pattern=r"^attempt-[0-9a-f]{32}$")]
    manifest_sha256: Sha256
    signature: Sha256 | None = Field(None, exclude_if=lambda signature: signature is None)


def hash_bytes(data: bytes) -> str:
    """Sha256 in hex."""
    return hashlib.sha256(data).hexdigest()


def hash_file(path: Path) -> FileEntry:
    """Size and sha256 of a file's present content."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(size=file.tell(), sha256=digest)


@cache
def library_versions() -> dict[str, str]:
    """Installed versions by package name, including Python's; imports none of the packages."""
    versions = {"python": python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


@cache
def git_revision() -> str | None:
    """Commit of the checkout this code runs from, with `-dirty` if files differ from it.

    None if the code was installed without its repository.
    """
    here = Path(__file__)
    try:
        # An installed copy may lie inside somebody else's repository.
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
        return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, check=True, capture_output=True, text=True, timeout=10
    )
    return done.stdout.strip()
