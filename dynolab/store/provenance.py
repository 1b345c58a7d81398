"""Git revision and library versions behind a result, for its manifest."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version

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
