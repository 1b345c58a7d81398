"""The public interface of the object store."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from dynolab.errors import CorruptData, StoreError
from dynolab.store.claim import Claim
from dynolab.store.commit import Committed, Signer, commit, committed, process_key
from dynolab.store.filesystem import Files
from dynolab.store.manifest import MANIFEST, MARKER, Manifest
from dynolab.store.read import Reader

log = logging.getLogger(__name__)

KEEP = 2
"""Resume states kept by default: the newest, and one to fall back on."""

_STAGE = re.compile(r"[a-z0-9][a-z0-9_-]*")
_KEY = re.compile(r"[0-9a-f]{64}")
_STEP = re.compile(r"step-([0-9]{8,19})")
_ATTEMPT = re.compile(r"stages/[a-z0-9][a-z0-9_-]*/[0-9a-f]{64}/attempt-[0-9a-f]{32}")


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
