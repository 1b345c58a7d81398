"""Small results and resume states, and what a stranger could plant in their place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dynolab.store import Manifest, Place
from dynolab.store.manifest import hash_bytes

KEY = "4c" * 32
ON_DISK = pytest.mark.parametrize("store_settings", ["file"], indirect=True)
"""For claims about what a store holds, which are the same wherever it lies."""


def manifest(**fields: Any) -> Manifest:
    return Manifest(stage="sft", key=KEY, version=1, **fields)


def write_files(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def contents(folder: Path) -> dict[str, bytes]:
    """What every file below a folder holds, by its path in it."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def json_bytes(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "replace")


def plant(place: Place, manifest: bytes, at: str = "") -> str:
    """A commit with a marker that fits whatever manifest it is given; returns its folder."""
    attempt, parent = f"attempt-{uuid4().hex}", at or place.path
    place._files.replace(f"{parent}/{attempt}/manifest.json", manifest)
    marker = {"attempt": attempt, "manifest_sha256": hash_bytes(manifest)}
    place._files.replace(f"{parent}/COMMITTED", json_bytes(marker))
    return f"{parent}/{attempt}"


def save_states(place: Place, folder: Path, *steps: int) -> None:
    """Commit a resume state after each of the steps."""
    for step in steps:
        source = write_files(folder / f"state-{step}", {"rank0/engine.bin": b"%06d" % step})
        place.commit_resume(step, source, manifest(extra={"cursor": step * 4}))


def state_folder(step: int) -> str:
    return f"stages/sft/{KEY}/resume/step-{step:08d}"


def states(place: Place) -> list[str]:
    return sorted(place._files.children(f"{place.path}/resume"))


def newest(place: Place) -> int | None:
    """Step of the newest state that counts, which holds what was saved at that step."""
    state = place.newest_resume()
    if state is None:
        return None
    step, folder = state
    assert (folder / "rank0/engine.bin").read_bytes() == b"%06d" % step
    saved = Manifest.model_validate_json((folder / "manifest.json").read_bytes())
    assert (saved.step, saved.extra) == (step, {"cursor": step * 4})
    return step
