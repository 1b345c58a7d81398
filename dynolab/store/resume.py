"""Resume states: committed as results are, and signed; the newest of few that verifies counts."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from dynolab.errors import CorruptData, StoreError
from dynolab.store.commit import commit, committed
from dynolab.store.filesystem import Files
from dynolab.store.manifest import MARKER, Manifest
from dynolab.store.read import Reader
from dynolab.store.signing import Signer

log = logging.getLogger(__name__)

KEEP = 2
"""States that are kept by default: the newest, and one to fall back on."""
_STEP = re.compile(r"step-([0-9]{8,19})")


def commit_resume(
    files: Files,
    place: str,
    step: int,
    source: Path,
    manifest: Manifest,
    signer: Signer,
    keep: int = KEEP,
) -> None:
    """Commit the state after `step` optimizer steps, then prune to the newest `keep`."""
    if step < 0:
        raise ValueError(f"step {step} is negative")
    stepped = manifest.model_copy(update={"step": step})
    # What lies there from an earlier run was passed over, else this one would have begun later.
    commit(files, _at(place, step), source, stepped, replace=True, signer=signer)
    try:
        _prune(files, place, step, keep)
    except StoreError as error:
        log.warning("older resume states stay for now: %s", error)


def newest_resume(
    files: Files, reader: Reader, place: str, stage: str, key: str, signer: Signer
) -> tuple[int, Path] | None:
    """Step and verified local folder of the newest state that is intact and signed.

    Others are passed over and stay: what seems corrupt may be the network's doing, and what bears
    another signature may only lack the right key. The run goes on from an older step and commits
    those steps anew.
    """
    for step in reversed(_steps(files, place)):
        state = committed(files, _at(place, step), stage, key, signer)
        if state is None:
            continue
        if state.manifest.step != step:
            log.warning("resume state of step %s lies at step %d", state.manifest.step, step)
            continue
        try:
            return step, reader.folder(state)
        except CorruptData as error:
            log.warning("resume state of step %d is left for the one before: %s", step, error)
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


def _prune(files: Files, place: str, newest: int, keep: int) -> None:
    """Deletes those before the newest `keep`. Later ones, which this run has passed over, stay."""
    steps = [step for step in _steps(files, place) if step <= newest]
    marked = [step for step in steps if MARKER in files.children(_at(place, step))]
    for step in steps:
        if step < min(marked[-keep:], default=0):
            _discard(files, _at(place, step))


def _discard(files: Files, folder: str) -> None:
    """The marker goes first: a half-deleted state must not be believed."""
    files.remove(f"{folder}/{MARKER}")
    files.remove_folder(folder)
