"""The commit protocol: files, then their manifest, then the marker COMMITTED.

A folder counts as committed only if COMMITTED names an attempt whose manifest has the hash given
in COMMITTED and the stage and key of its place, and whose files all exist with their sizes.
Anything else in the store was left by a killed writer or written by somebody else.

Resume states are signed: training resumes only from states of this platform's own workers. A state
cannot run code (tensors are safetensors, the rest is JSON), but anyone who can write to the store
could replace the weights. A signature is HMAC-SHA256 (RFC 2104) over the manifest's stored bytes;
the manifest holds stage, key, step and every file's sha256.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from dynolab.errors import CorruptData, StoreError
from dynolab.store.filesystem import SMALL, Files
from dynolab.store.manifest import MANIFEST, MARKER, FileEntry, Manifest, Marker, hash_bytes, inside

log = logging.getLogger(__name__)

FILES_AT_ONCE = 4


_PURPOSE = b"dynolab resume state\0"  # the same key signs other things, too
_PROCESS_KEY = secrets.token_bytes(32)


def process_key() -> bytes:
    """A random key for this process's lifetime: it accepts only its own states."""
    return _PROCESS_KEY


class Signer:
    """Signs and verifies with a key that it reads only when needed."""

    def __init__(self, key: Callable[[], bytes]) -> None:
        self._key = key

    def sign(self, content: bytes) -> str:
        """The signature, in hex."""
        return hmac.new(self._key(), _PURPOSE + content, sha256).hexdigest()

    def signed(self, content: bytes, signature: str | None) -> bool:
        """Whether `signature` is the content's; compares in constant time."""
        return signature is not None and hmac.compare_digest(signature, self.sign(content))


@dataclass(frozen=True)
class Committed:
    """A committed attempt: its folder in the store and its manifest."""

    folder: str
    manifest: Manifest


def commit(
    files: Files,
    place: str,
    source: Path,
    manifest: Manifest,
    *,
    replace: bool = False,
    signer: Signer | None = None,
) -> Committed:
    """Upload a local folder to `place` and commit it.

    **Arguments:** `manifest` lacks only the files; `replace` overrides an earlier commit; `signer`
    signs the manifest.

    **Returns** the committed attempt: an earlier one if another process committed first.
    """
    attempt = f"attempt-{uuid4().hex}"  # no other process writes to it
    folder = f"{place}/{attempt}"
    try:
        entries = _upload(files, source, folder)
        manifest = manifest.model_copy(update={"files": entries})
        if files.sizes(folder) != manifest.sizes:
            raise StoreError(f"{files.address(folder)} does not hold the files sent to it")
    except StoreError:
        with suppress(StoreError):  # frees a full disk
            files.remove_folder(folder)
        raise
    content = manifest.to_bytes()
    if len(content) > SMALL:
        raise StoreError(f"{source}: too many files; their manifest has more than {SMALL} bytes")
    files.create(f"{folder}/{MANIFEST}", content)
    signature = signer.sign(content) if signer else None
    marker = Marker(attempt=attempt, manifest_sha256=hash_bytes(content), signature=signature)
    path, data = f"{place}/{MARKER}", marker.model_dump_json().encode()
    if replace:
        files.replace(path, data)
        return Committed(folder, manifest)
    try:
        files.create(path, data)
    except FileExistsError:
        winner = committed(files, place, manifest.stage, manifest.key)
        if winner is not None:
            files.remove_folder(folder)
            return winner
        log.warning("%s: the marker is damaged or invalid and is replaced", files.address(path))
        files.replace(path, data)
    return Committed(folder, manifest)


def committed(
    files: Files, place: str, stage: str, key: str, signer: Signer | None = None
) -> Committed | None:
    """The committed attempt under `place`, or None; reads only marker and manifest.

    With a signer, only attempts with its signature count.
    """
    try:
        return read_committed(files, place, stage, key, signer)
    except FileNotFoundError:
        return None
    except (ValueError, CorruptData) as error:  # pydantic's ValidationError is a ValueError
        log.warning("%s counts as not committed: %s", files.address(place), error)
        return None


class NotSigned(ValueError):
    """A resume state that is intact and was signed with another key."""


def read_committed(
    files: Files, place: str, stage: str, key: str, signer: Signer | None
) -> Committed:
    """The committed attempt under `place`, whose marker and manifest fit each other.

    **Raises** `FileNotFoundError`, `CorruptData` or `ValueError` if there is no valid one.
    """
    marker = Marker.model_validate_json(files.read(f"{place}/{MARKER}"))
    folder = f"{place}/{marker.attempt}"
    content = files.read(f"{folder}/{MANIFEST}")
    if hash_bytes(content) != marker.manifest_sha256:
        raise ValueError("its manifest is not the one that was committed")
    if signer is not None and not signer.signed(content, marker.signature):
        raise NotSigned(
            "it is not signed with this worker's key; set the same DYNOLAB_KEY on all workers that "
            "share the store"
        )
    manifest = Manifest.model_validate_json(content)
    if (manifest.stage, manifest.key) != (stage, key):
        raise ValueError(f"it belongs to {manifest.stage} {manifest.key}")
    present = files.sizes(folder)
    if any(present.get(path) != size for path, size in manifest.sizes.items()):
        raise ValueError("files are missing or have other sizes")
    return Committed(folder, manifest)


def _upload(files: Files, source: Path, folder: str) -> dict[str, FileEntry]:
    """Uploads several files at once, the largest first; stops at the first error."""
    paths = _plain_files(source)
    largest_first = sorted(paths, key=lambda name: -paths[name].stat().st_size)
    # Leaving the block waits, so that no running upload writes later.
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        sent = {
            name: pool.submit(files.upload, paths[name], f"{folder}/{name}")
            for name in largest_first
        }
        try:
            return {name: sent[name].result() for name in paths}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _plain_files(source: Path) -> dict[str, Path]:
    """A folder's files by their name in the manifest, sorted."""
    files = {}
    for path in sorted(source.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        name = path.relative_to(source).as_posix()
        try:
            inside(name)
        except ValueError as error:
            raise StoreError(f"{path}: {error}") from error
        if name == MANIFEST or path.is_symlink() or not path.is_file():
            raise StoreError(f"{path}: only plain files not named {MANIFEST} can be committed")
        files[name] = path
    return files
