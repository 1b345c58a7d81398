"""The public interface of the object store: places of results, and verified folders of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from pydantic import ValidationError

from dynolab.errors import CorruptData, StoreError
from dynolab.store.claim import Claim
from dynolab.store.commit import Committed, Signer, commit, committed, process_key
from dynolab.store.filesystem import Files
from dynolab.store.manifest import MANIFEST, MARKER, FileEntry, Manifest, hash_file

log = logging.getLogger(__name__)

KEEP = 2
"""Resume states kept by default: the newest, and one to fall back on."""

_STAGE = re.compile(r"[a-z0-9][a-z0-9_-]*")
_KEY = re.compile(r"[0-9a-f]{64}")
_STEP = re.compile(r"step-([0-9]{8,19})")
_ATTEMPT = re.compile(r"stages/[a-z0-9][a-z0-9_-]*/[0-9a-f]{64}/attempt-[0-9a-f]{32}")

_Stamp = tuple[int, int, int, int]
"""Size, times and inode of a file."""


class Store:
    """Committed results of stages, under one URL.

    **Arguments:**

    - `url`: `file:///absolute/folder` or `s3://bucket/prefix` (credentials from AWS_*).
    - `cache`: local folder for verified copies of a remote store's files.
    - `endpoint`: address of an S3 server other than Amazon's.
    - `key`: returns the secret that signs resume states; states signed with another key are
      skipped. Default: a random key for this process's lifetime.
    - `keep`: number of newest resume states kept per training.

    Raises ConfigError for an invalid URL; StoreError if the store cannot be reached, CorruptData
    if it holds other bytes than were committed (dynolab.errors).
    """

    def __init__(
        self,
        url: str,
        *,
        cache: Path,
        endpoint: str | None = None,
        key: Callable[[], bytes] = process_key,
        keep: int = KEEP,
    ) -> None:
        self.files, self.signer, self.keep = Files(url, endpoint), Signer(key), keep
        self.reader = Reader(self.files, cache)
        self._proved_writable = False

    def check_writable(self) -> None:
        """Check, once per process, that results can be committed; ConfigError if not."""
        if not self._proved_writable:
            self.files.check_writable()
            self._proved_writable = True

    def place(self, stage: str, key: str) -> Place:
        """The place in the store of one stage and key."""
        if not _STAGE.fullmatch(stage) or not _KEY.fullmatch(key):
            raise ValueError(f"not a stage name and key: {stage!r}, {key!r}")
        return Place(self, stage, key)

    def manifest(self, address: str, digest: str) -> Manifest:
        """The manifest at a result's address; CorruptData unless it has that content digest."""
        return self._result(address, digest).manifest

    def folder(self, address: str, digest: str, subfolder: str | None = None) -> Path:
        """Verified local folder of a result's files, or of one folder among them."""
        return self.reader.folder(self._result(address, digest), subfolder)

    def check_input(self, address: str, digest: str) -> None:
        """Check all files of a result before something new is computed from it.

        Those of a remote store are checked as they are fetched. **Raises** `CorruptData`.
        """
        if self.files.is_local:
            self.folder(address, digest)

    def _result(self, address: str, digest: str) -> Committed:
        path = address.removeprefix(self.files.url + "/")
        if not _ATTEMPT.fullmatch(path):
            raise StoreError(f"{address} is not a result of the store {self.files.url}")
        try:
            manifest = Manifest.model_validate_json(self.files.read(f"{path}/{MANIFEST}"))
        except (FileNotFoundError, ValidationError) as error:
            raise CorruptData(f"{address} has no valid manifest: {error}") from error
        if manifest.digest != digest:
            raise CorruptData(f"{address} has content {manifest.digest}, not {digest}")
        return Committed(path, manifest)


class Place:
    """Everything stored for one stage key: the result, resume states, the claim, logs."""

    def __init__(self, store: Store, stage: str, key: str) -> None:
        self._store, self._files = store, store.files
        self.stage, self.key = stage, key
        self.path = f"stages/{stage}/{key}"

    def address(self, result: Committed) -> str:
        """Full URL of a result's folder."""
        return self._files.address(result.folder)

    def committed(self) -> Committed | None:
        """The committed result; None if there is no valid one."""
        return committed(self._files, self.path, self.stage, self.key)

    def manifests(self) -> list[Manifest]:
        """Manifests of the committed result and of signed resume states, unverified beyond that."""
        signer = self._store.signer
        states = (
            committed(self._files, self._state(step), self.stage, self.key, signer)
            for step in self._steps()
        )
        return [state.manifest for state in (self.committed(), *states) if state is not None]

    def commit(self, source: Path, manifest: Manifest, *, replace: bool = False) -> Committed:
        """Commit a local folder as the result; returns the committed result.

        `replace` overrides an earlier result; without it the first commit wins.
        """
        return commit(self._files, self.path, source, manifest, replace=replace)

    def commit_resume(self, step: int, source: Path, manifest: Manifest) -> None:
        """Commit the signed state after `step` optimizer steps, then prune to the newest few."""
        if step < 0:
            raise ValueError(f"step {step} is negative")
        stepped = manifest.model_copy(update={"step": step})
        # An existing state of this step was rejected; else this run would have resumed from it.
        commit(
            self._files,
            self._state(step),
            source,
            stepped,
            replace=True,
            signer=self._store.signer,
        )
        try:
            self._prune(step)
        except StoreError as error:
            log.warning("could not delete older resume states: %s", error)

    def newest_resume(self) -> tuple[int, Path] | None:
        """Step and verified local folder of the newest resume state that is intact and signed.

        Skips other states but keeps them: corruption may be a network error, and a wrong signature
        a misconfigured key. The run resumes from an older step and commits the skipped steps again.
        """
        for step in reversed(self._steps()):
            place, signer = self._state(step), self._store.signer
            state = committed(self._files, place, self.stage, self.key, signer)
            if state is None:
                continue
            recorded = state.manifest.step
            if recorded != step:
                log.warning("skipped a resume state of step %s at step %d", recorded, step)
                continue
            try:
                return step, self._store.reader.folder(state)
            except CorruptData as error:
                log.warning("skipped the resume state of step %d: %s", step, error)
        return None

    def clear_resume(self) -> None:
        """Delete all resume states."""
        for step in reversed(self._steps()):
            self._discard(step)

    def _state(self, step: int) -> str:
        return f"{self.path}/resume/step-{step:08d}"

    def _steps(self) -> list[int]:
        names = self._files.children(f"{self.path}/resume")
        return sorted(int(match[1]) for name in names if (match := _STEP.fullmatch(name)))

    def _prune(self, newest: int) -> None:
        """Deletes states older than the newest few; keeps later ones, which this run skipped."""
        steps = [step for step in self._steps() if step <= newest]
        marked = [step for step in steps if MARKER in self._files.children(self._state(step))]
        for step in steps:
            if step < min(marked[-self._store.keep :], default=0):
                self._discard(step)

    def _discard(self, step: int) -> None:
        """Deletes a state, the marker first, so that a half-deleted state does not count."""
        self._files.remove(f"{self._state(step)}/{MARKER}")
        self._files.remove_folder(self._state(step))

    def claim(self) -> Claim:
        """A contender for computing this key."""
        return Claim(self._files, f"{self.path}/CLAIM")

    def upload_logs(self, attempt: str, source: Path) -> None:
        """Upload an attempt's logs; only warns about those that fail."""
        for path in sorted(source.rglob("*")):
            if path.is_file():
                name = path.relative_to(source).as_posix()
                try:
                    self._files.upload(path, f"{self.path}/logs/{attempt}/{name}")
                except StoreError as error:
                    log.warning("a log was not uploaded: %s", error)


class Reader:
    """Provides local folders whose files all have the hashes of their manifest.

    A local store is read in place, a remote one through copies under `cache`. A file is hashed
    once per process, and again when its size or times change.
    """

    def __init__(self, files: Files, cache: Path) -> None:
        self._files, self._cache = files, cache
        self._verified: dict[Path, tuple[_Stamp, str]] = {}

    def folder(self, source: Committed, subfolder: str | None = None) -> Path:
        """The committed folder, or one folder inside it, on this machine's disks.

        Raises CorruptData if bytes differ from the manifest, or the folder holds files that it
        does not list; StoreError if the result has no such folder.
        """
        try:
            return self._folder(source, subfolder)
        except OSError as error:  # from this machine's disks
            address = self._files.address(source.folder)
            raise StoreError(f"cannot read {address} on this machine: {error}") from error

    def _folder(self, source: Committed, subfolder: str | None) -> Path:
        prefix = f"{subfolder.strip('/')}/" if subfolder else ""
        files = {p: e for p, e in source.manifest.files.items() if p.startswith(prefix)}
        if prefix and not files:
            names = ", ".join(sorted({path.partition("/")[0] for path in source.manifest.files}))
            address = self._files.address(source.folder)
            raise StoreError(f"{address} holds no folder {subfolder!r}; it holds: {names}")
        in_place = self._files.local(source.folder)
        root = in_place or self._cache / source.folder
        missing = [path for path, entry in files.items() if not self._holds(root / path, entry)]
        if missing and in_place:
            raise CorruptData(self._changed(source, missing[0]))
        if not in_place:
            self._fetch_all(source, missing, root)
        folder = root / prefix
        _refuse_unlisted(folder, {root / path for path in files} | {root / MANIFEST})
        return folder

    def _fetch_all(self, source: Committed, missing: Sequence[str], root: Path) -> None:
        """Downloads files; raises CorruptData before downloading one of another size."""
        sizes = self._files.sizes(source.folder) if missing else {}
        for path in missing:
            entry = source.manifest.files[path]
            if sizes.get(path) != entry.size:
                raise CorruptData(self._changed(source, path))
            self._fetch(source, path, entry, root / path)
        root.mkdir(parents=True, exist_ok=True)
        (root / MANIFEST).write_bytes(source.manifest.to_bytes())

    def _fetch(self, source: Committed, path: str, entry: FileEntry, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        parts = self._cache / "parts"
        parts.mkdir(exist_ok=True)
        part = parts / uuid4().hex
        try:
            for _ in range(2):  # the first mismatch may be a network error
                with suppress(FileNotFoundError):
                    self._files.download(f"{source.folder}/{path}", part)
                    if hash_file(part) == entry:
                        part.replace(target)
                        return
            raise CorruptData(self._changed(source, path))
        finally:
            part.unlink(missing_ok=True)

    def _holds(self, path: Path, entry: FileEntry) -> bool:
        try:
            stat = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        stamp = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
        if self._verified.get(path) == (stamp, entry.sha256):
            return True
        if stat.st_size != entry.size or hash_file(path) != entry:
            return False
        self._verified[path] = (stamp, entry.sha256)
        return True

    def _changed(self, source: Committed, path: str) -> str:
        manifest = source.manifest
        return (
            f"{self._files.address(source.folder)}/{path} is missing or no longer has the bytes "
            f"that were committed; dynolab verify --remove {manifest.stage}/{manifest.key[:12]} "
            "removes this result alone, and the next run computes it again"
        )


def _refuse_unlisted(folder: Path, listed: set[Path]) -> None:
    """Raises CorruptData for files outside the manifest: they would be loaded unverified."""
    for path in folder.rglob("*"):
        if (path.is_symlink() or not path.is_dir()) and path not in listed:
            raise CorruptData(f"{path} was not committed with its folder; delete it")
