"""The few file operations that the store is built on, for local folders and for S3."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec

from dynolab.errors import ConfigError, CorruptData, DynolabError, StoreError
from dynolab.store.manifest import FileEntry, hash_file

# Every part that is sent carries its sha256 in the signature, so the server verifies what it
# stores; the newer CRC trailers are asked for only where an operation requires them, because
# several S3-compatible servers refuse them.
S3_CLIENT = {
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
    "s3": {"payload_signing_enabled": True},
    "connect_timeout": 10,
    "read_timeout": 60,  # from the last byte sent: servers join the parts of large files in silence
}
# botocore tries every request five times; what it gives up s3fs begins twice more, not four times:
# a server that never answers is known as such after a quarter of an hour.
S3_ROUNDS = 3
PART_BYTES, PARTS_AT_ONCE = 64 * 2**20, 2
"""Of a file sent to S3; one of less than two parts goes whole. Each part is held in memory."""
S3_PARTS = 10_000  # the most that S3 takes of one file
SMALL = 16 * 2**20
"""Bytes that a file which is read whole may have: a manifest of 100,000 files."""


class Files:
    """Files under one root, by relative path.

    `create` never overwrites and nobody ever sees part of what it writes; both hold on S3
    (`If-None-Match`) and on local disks (a hard link onto the final name). Anything that goes
    wrong is a StoreError, save a missing or an already existing file where the caller asks.
    """

    def __init__(self, url: str, endpoint: str | None = None) -> None:
        self.url, self.endpoint = url.rstrip("/"), endpoint
        scheme, _, path = self.url.partition("://")
        self.is_local = scheme == "file"
        if scheme not in ("file", "s3") or not path.strip("/"):
            raise ConfigError(
                "DYNOLAB_STORE", url, "use file:///absolute/folder or s3://bucket/prefix"
            )
        if self.is_local and not path.startswith("/"):
            raise ConfigError("DYNOLAB_STORE", url, "a file:// store needs an absolute folder")
        # A listing that is kept would hide what other processes commit.
        options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
        if not self.is_local:
            options |= {"endpoint_url": endpoint, "config_kwargs": S3_CLIENT}
        try:
            self._fs = fsspec.filesystem(scheme, **options)
        except ImportError as error:
            remedy = f"install what its kind needs: pip install 'dynolab[platform]' ({error})"
            raise ConfigError("DYNOLAB_STORE", url, remedy) from error
        if not self.is_local:
            self._fs.retries = S3_ROUNDS
        self._root = os.path.normpath(path) if self.is_local else path

    def address(self, path: str) -> str:
        """Full URL of a path of this store."""
        return f"{self.url}/{path}"

    def local(self, path: str) -> Path | None:
        """Where the path lies on this machine's disks, if it does."""
        return Path(self._root, path) if self.is_local else None

    def read(self, path: str) -> bytes:
        """Whole content of a small file; FileNotFoundError if there is none.

        CorruptData for one larger than SMALL, of which no more than that is read.
        """
        with self._explained("read", path):
            if self._fs.size(self._at(path)) == 0:  # has no range that S3 could give
                return b""
            content = bytes(self._fs.cat_file(self._at(path), start=0, end=SMALL + 1))
        if len(content) > SMALL:
            raise CorruptData(f"{self.address(path)} is larger than {SMALL} bytes")
        return content

    def create(self, path: str, data: bytes) -> None:
        """Write a file that must not exist; FileExistsError if it does, with other content."""
        try:
            self._create(path, data)
        except (FileExistsError, StoreError) as error:
            # A repeated request may meet the object that its own first try left, and not every
            # server words the refusal alike: what is there now decides.
            existing = self._existing(path) if _was_refused(error) else None
            if existing == data:
                return
            if existing is not None or isinstance(error, FileExistsError):
                raise FileExistsError(self.address(path)) from error
            raise

    def replace(self, path: str, data: bytes) -> None:
        """Write a file whether or not it exists; readers see the old or the new content."""
        with self._explained("write", path):
            if self.is_local:
                with _durable_file(Path(self._root, path), data) as written:
                    written.replace(Path(self._root, path))
            else:
                self._fs.pipe_file(self._at(path), data)

    def upload(self, source: Path, path: str) -> FileEntry:
        """Copy a local file into the store; size and hash of what was sent."""
        with self._explained("write", path):
            if self.is_local:
                return _copy_durably(source, Path(self._root, path))
            return self._send(source, self._at(path))

    def _send(self, source: Path, target: str) -> FileEntry:
        """Hashed beside the sending; a file that changes meanwhile could be sent as another."""
        before = source.stat()
        part = max(PART_BYTES, -(-before.st_size // S3_PARTS))
        with ThreadPoolExecutor(1) as beside:
            hashed = beside.submit(hash_file, source)
            self._fs.put_file(str(source), target, chunksize=part, max_concurrency=PARTS_AT_ONCE)
        after = source.stat()
        if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
            raise StoreError(f"{source} changed while it was sent")
        return hashed.result()

    def download(self, path: str, target: Path) -> None:
        """Copy a file of the store to a local path; FileNotFoundError if there is none."""
        with self._explained("read", path):
            self._fs.get_file(self._at(path), str(target))

    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of every file below a folder, by path relative to it; {} without the folder."""
        start = self._at(folder)
        try:
            with self._explained("list", folder):
                found = self._fs.find(start, detail=True)
        except FileNotFoundError:
            return {}
        return {path.removeprefix(start + "/"): int(info["size"]) for path, info in found.items()}

    def children(self, folder: str) -> list[str]:
        """Names directly inside a folder; [] without the folder."""
        try:
            with self._explained("list", folder):
                return [
                    path.rstrip("/").rpartition("/")[2]
                    for path in self._fs.ls(self._at(folder), detail=False)
                ]
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        """Delete a file if it is there."""
        with suppress(FileNotFoundError), self._explained("delete", path):
            self._fs.rm_file(self._at(path))

    def remove_folder(self, folder: str) -> None:
        """Delete a folder with all that is below it, if it is there."""
        with suppress(FileNotFoundError), self._explained("delete", folder):
            self._fs.rm(self._at(folder), recursive=True)

    def check_writable(self) -> None:
        """Prove that files can be created once, read and deleted, else say what to change.

        Raises ConfigError naming DYNOLAB_STORE, DYNOLAB_STORE_ENDPOINT or AWS_ACCESS_KEY_ID.
        """
        probe, content = f"probe-{uuid4().hex}", uuid4().bytes
        try:
            self.create(probe, content)
            with suppress(FileExistsError):
                self.create(probe, content + b"again")
                raise ConfigError(
                    "DYNOLAB_STORE", self.url, "its server overwrites instead of creating once"
                )
            self.remove(probe)
        except StoreError as error:
            raise self._diagnosis(error) from error

    def _create(self, path: str, data: bytes) -> None:
        with self._explained("create", path):
            if self.is_local:
                with _durable_file(Path(self._root, path), data) as written:
                    os.link(written, Path(self._root, path))
            else:
                self._fs.pipe_file(self._at(path), data, mode="create")

    def _existing(self, path: str) -> bytes | None:
        with suppress(FileNotFoundError, StoreError):
            return self.read(path)
        return None

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    @contextmanager
    def _explained(self, doing: str, path: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, FileExistsError) as error:
            if doing == "write" or (doing == "create" and isinstance(error, FileNotFoundError)):
                raise StoreError(f"cannot {doing} {self.address(path)}: {error}") from error
            raise
        except DynolabError:
            raise
        except Exception as error:  # each kind of store has errors of its own
            reason = f"{type(error).__name__}: {error}"
            raise StoreError(f"cannot {doing} {self.address(path)}: {reason}") from error

    def _diagnosis(self, error: StoreError) -> ConfigError:
        cause: BaseException = error
        while isinstance(cause, StoreError) and cause.__cause__ is not None:
            cause = cause.__cause__
        kind, reason = type(cause).__name__, str(cause)
        if self.is_local:
            remedy = f"name a folder that this user can write to ({kind}: {reason})"
            return ConfigError("DYNOLAB_STORE", self.url, remedy)
        if isinstance(cause, PermissionError) or "Credentials" in kind:
            remedy = (
                "the object store refuses these credentials: set AWS_ACCESS_KEY_ID and "
                f"AWS_SECRET_ACCESS_KEY to ones that may write {self.url} ({reason})"
            )
            return ConfigError("AWS_ACCESS_KEY_ID", os.environ.get("AWS_ACCESS_KEY_ID"), remedy)
        if isinstance(cause, FileNotFoundError):
            bucket = self._root.partition("/")[0]
            remedy = f"create the bucket {bucket!r} or name one that exists ({reason})"
            return ConfigError("DYNOLAB_STORE", self.url, remedy)
        remedy = f"start the object store there or correct the address ({kind}: {reason})"
        return ConfigError("DYNOLAB_STORE_ENDPOINT", self.endpoint, remedy)


def _was_refused(error: Exception) -> bool:
    """Whether the store answered at all; without an answer there is nothing to ask it."""
    return isinstance(error, FileExistsError) or isinstance(error.__cause__, OSError)


@contextmanager
def _durable_file(final: Path, data: bytes) -> Iterator[Path]:
    """A synced temporary file beside its final name; the final folder is synced afterwards."""
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(f".{uuid4().hex}.part")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(final.parent)


def _copy_durably(source: Path, target: Path) -> FileEntry:
    target.parent.mkdir(parents=True, exist_ok=True)
    sha, size = hashlib.sha256(), 0
    with source.open("rb") as reader, target.open("xb") as writer:
        while block := reader.read(2**20):
            writer.write(block)
            sha.update(block)
            size += len(block)
        writer.flush()
        os.fsync(writer.fileno())
    _sync_folder(target.parent)
    return FileEntry(size=size, sha256=sha.hexdigest())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
