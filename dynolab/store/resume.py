"""Resume states: committed like results, and signed; a resumed run uses the newest valid one."""

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
"""Default number of states kept: the newest, and one to fall back on."""
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
    """Commit the state after `step` optimizer steps, then prune to the newest `keep`.

    Records and the best model so far are the same in the state before, and are not sent again.
    """
    if step < 0:
        raise ValueError(f"step {step} is negative")
    stepped = manifest.model_copy(update={"step": step})
    # An existing state of this step was rejected; otherwise this run would have resumed from it.
    before = [each for each in _steps(files, place) if each < step]
    earlier = None
    if before and not files.is_local:
        at = _at(place, before[-1])
        earlier = committed(files, at, manifest.stage, manifest.key, signer)
    commit(files, _at(place, step), source, stepped, replace=True, signer=signer, earlier=earlier)
    try:
        _prune(files, place, step, keep)
    except StoreError as error:
        log.warning("could not delete older resume states: %s", error)


def newest_resume(
    files: Files, reader: Reader, place: str, stage: str, key: str, signer: Signer
) -> tuple[int, Path] | None:
    """Step and verified local folder of the newest state that is intact and signed.

    Skips other states but keeps them: corruption may be a network error, and a wrong signature a
    misconfigured key. The run resumes from an older step and commits the skipped steps again.
    """
    for step in reversed(_steps(files, place)):
        state = committed(files, _at(place, step), stage, key, signer)
        if state is None:
            continue
        if state.manifest.step != step:
            log.warning("skipped a resume state of step %s at step %d", state.manifest.step, step)
            continue
        try:
            return step, reader.folder(state)
        except CorruptData as error:
            log.warning("skipped the resume state of step %d: %s", step, error)
    return None


def clear_resume(files: Files, place: str) -> None:
    """Delete every state."""
    for step in reversed(_steps(files, place)):
        _discard(files, _at(place, step))


def _at(place: str, step: int) -> str:
    return f"{place}/resume/step-{step:08d}"


def _steps(files: Files, place: str) -> list[int]:
    matches = (_STEP.fullmatch(name) for name in files.children(f"{place}/resume"))
    return sorted(int(match[1]) for match in matches if match)


def _prune(files: Files, place: str, newest: int, keep: int) -> None:
    """Deletes states older than the newest `keep`; keeps later ones, which this run skipped."""
    steps = [step for step in _steps(files, place) if step <= newest]
    marked = [step for step in steps if MARKER in files.children(_at(place, step))]
    for step in steps:
        if step < min(marked[-keep:], default=0):
            _discard(files, _at(place, step))


def _discard(files: Files, folder: str) -> None:
    """Deletes a state, the marker first, so that a half-deleted state does not count."""
    files.remove(f"{folder}/{MARKER}")
    files.remove_folder(folder)
