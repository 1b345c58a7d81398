"""Resume states: committed like results, few of them, the newest that verifies counts."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from dynolab.errors import CorruptData
from dynolab.store.commit import commit, committed
from dynolab.store.filesystem import Files
from dynolab.store.manifest import MARKER, Manifest
from dynolab.store.read import Reader

log = logging.getLogger(__name__)

KEEP = 2  # the newest, and one to fall back on
_STEP = re.compile(r"step-(\d{8,})")


def commit_resume(files: Files, place: str, step: int, source: Path, manifest: Manifest) -> None:
    """Commit the state after `step` optimizer steps, then prune to the newest two."""
    if step < 0:
        raise ValueError(f"step {step} is negative")
    commit(files, _at(place, step), source, manifest.model_copy(update={"step": step}))
    _prune(files, place)


def newest_resume(
    files: Files, reader: Reader, place: str, stage: str, key: str
) -> tuple[int, Path] | None:
    """Step and verified local folder of the newest state that is intact.

    States that prove corrupt are deleted on the way: the run goes on from an older step and
    will commit those steps anew.
    """
    for step in reversed(_steps(files, place)):
        state = committed(files, _at(place, step), stage, key)
        if state is not None:
            try:
                return step, reader.folder(state)
            except CorruptData as error:
                log.warning("resume state of step %d is left for the one before: %s", step, error)
        _discard(files, _at(place, step))
    return None


def clear_resume(files: Files, place: str) -> None:
    """Forget every state."""
    for step in reversed(_steps(files, place)):
        _discard(files, _at(place, step))


def _at(place: str, step: int) -> str:
    return f"{place}/resume/step-{step:08d}"


def _steps(files: Files, place: str) -> list[int]:
    matches = (_STEP.fullmatch(name) for name in files.children(f"{place}/resume"))
    return sorted(int(match[1]) for match in matches if match)


def _prune(files: Files, place: str) -> None:
    steps = _steps(files, place)
    marked = [step for step in steps if MARKER in files.children(_at(place, step))]
    for step in steps:
        if step < min(marked[-KEEP:], default=0):
            _discard(files, _at(place, step))


def _discard(files: Files, folder: str) -> None:
    """The marker goes first: a half-deleted state must not be believed."""
    files.remove(f"{folder}/{MARKER}")
    files.remove_folder(folder)
