"""The file operations of the store, for local folders and for S3."""

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

from dynolab.errors import ConfigError, CorruptData, DynolabError, StoreError, to_install
from dynolab.store.manifest import FileEntry, hash_file

# Every part's signature covers its sha256, so the server verifies what it stores. The newer CRC
# trailers are sent only if an operation requires them: several S3-compatible servers refuse them.
S3_CLIENT = {
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
    "s3": {"payload_signing_enabled": True},
    "connect_timeout": 10,
    "read_timeout": 60,  # servers send nothing while they join the parts of a large file
}
# botocore tries every request five times, and s3fs repeats that S3_ROUNDS times instead of five:
# a server that never answers fails after a quarter of an hour.
S3_ROUNDS = 3
PART_BYTES, PARTS_AT_ONCE = 64 * 2**20, 2
"""Of a multipart upload to S3; smaller files go in one request. Each part is held in memory."""
S3_PARTS = 10_000  # S3's limit of parts per file
SMALL = 16 * 2**20
"""Largest file, in bytes, that is read into memory: fits a manifest of 100,000 files."""


class Files:
    """Files under one root, by relative path.

    `create` never overwrites and is atomic, on S3 (`If-None-Match`) and on local disks (a hard
    link onto the final name). Every failure raises StoreError, except FileNotFoundError and
    FileExistsError where a method documents them.
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
        # Cached listings would hide other processes' commits.
        options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
        if not self.is_local:
            options |= {"endpoint_url": endpoint, "config_kwargs": S3_CLIENT}
        try:
            self._fs = fsspec.filesystem(scheme, **options)
        except ImportError as error:
            raise ConfigError(
                "DYNOLAB_STORE",
                url,
                f"install its file system, {to_install('platform')} ({error})",
            ) from error
        if not self.is_local:
            self._fs.retries = S3_ROUNDS
        self._root = os.path.normpath(path) if self.is_local else path

    def address(self, path: str) -> str:
        """Full URL of a path in this store."""
        return f"{self.url}/{path}"

    def local(self, path: str) -> Path | None:
        """The path on this machine's disks; None for a remote store."""
        return Path(self._root, path) if self.is_local else None

    def read(self, path: str) -> bytes:
        """Content of a small file; FileNotFoundError if it does not exist.

        Raises CorruptData for a file larger than SMALL, after reading that much.
        """
        with self._explained("read", path):
            if self._fs.size(self._at(path)) == 0:  # S3 refuses ranges of empty files
                return b""
            content = bytes(self._fs.cat_file(self._at(path), start=0, end=SMALL + 1))
        if len(content) > SMALL:
            raise CorruptData(f"{self.address(path)} is larger than {SMALL} bytes")
        return content

    def create(self, path: str, data: bytes) -> None:
        """Write a new file; FileExistsError if it already exists with other content."""
        try:
            self._create(path, data)
        except (FileExistsError, StoreError) as error:
            # A retried request may meet the object that its first try wrote, and servers word the
            # refusal differently: compare with the present content.
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
        """Copy a local file into the store; returns size and hash of the bytes sent."""
        with self._explained("write", path):
            if self.is_local:
                return _copy_durably(source, Path(self._root, path))
            return self._send(source, self._at(path))

    def _send(self, source: Path, target: str) -> FileEntry:
        """Hashes the file while sending it; StoreError if it changed meanwhile."""
        before = source.stat()
        part = max(PART_BYTES, -(-before.st_size // S3_PARTS))
        with ThreadPoolExecutor(1) as pool:
            entry = pool.submit(hash_file, source)
            self._fs.put_file(str(source), target, chunksize=part, max_concurrency=PARTS_AT_ONCE)
        after = source.stat()
        if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
            raise StoreError(f"{source} changed while it was sent")
        return entry.result()

    def download(self, path: str, target: Path) -> None:
        """Copy a file of the store to a local path; FileNotFoundError if it does not exist."""
        with self._explained("read", path):
            self._fs.get_file(self._at(path), str(target))

    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of every file below a folder, by relative path; {} if there is no folder."""
        start = self._at(folder)
        try:
            with self._explained("list", folder):
                infos = self._fs.find(start, detail=True)
        except FileNotFoundError:
            return {}
        return {path.removeprefix(start + "/"): int(info["size"]) for path, info in infos.items()}

    def children(self, folder: str) -> list[str]:
        """Names directly inside a folder; [] if there is no folder."""
        try:
            with self._explained("list", folder):
                return [
                    path.rstrip("/").rpartition("/")[2]
                    for path in self._fs.ls(self._at(folder), detail=False)
                ]
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        """Delete a file if it exists."""
        with suppress(FileNotFoundError), self._explained("delete", path):
            self._fs.rm_file(self._at(path))

    def remove_folder(self, folder: str) -> None:
        """Delete a folder recursively, if it exists."""
        with suppress(FileNotFoundError), self._explained("delete", folder):
            self._fs.rm(self._at(folder), recursive=True)

    def check_writable(self) -> None:
        """Check that files can be created once, read and deleted.

        Raises ConfigError for DYNOLAB_STORE, DYNOLAB_STORE_ENDPOINT or AWS_ACCESS_KEY_ID.
        """
        probe, content = f"probe-{uuid4().hex}", uuid4().bytes
        try:
            self.create(probe, content)
            with suppress(FileExistsError):
                self.create(probe, content + b"again")
                raise ConfigError(
                    "DYNOLAB_STORE",
                    self.url,
                    "its server ignores If-None-Match and overwrites files; use another server",
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
    def _explained(self, action: str, path: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, FileExistsError) as error:
            if action == "write" or (action == "create" and isinstance(error, FileNotFoundError)):
                raise StoreError(f"cannot {action} {self.address(path)}: {error}") from error
            raise
        except DynolabError:
            raise
        except Exception as error:  # each kind of store raises its own errors
            raise StoreError(
                f"cannot {action} {self.address(path)}: {type(error).__name__}: {error}"
            ) from error

    def _diagnosis(self, error: StoreError) -> ConfigError:
        cause: BaseException = error
        while isinstance(cause, StoreError) and cause.__cause__ is not None:
            cause = cause.__cause__
        kind, reason = type(cause).__name__, str(cause)
        if self.is_local:
            return ConfigError(
                "DYNOLAB_STORE",
                self.url,
                f"use a folder that this user can write to ({kind}: {reason})",
            )
        if isinstance(cause, PermissionError) or "Credentials" in kind:
            return ConfigError(
                "AWS_ACCESS_KEY_ID",
                os.environ.get("AWS_ACCESS_KEY_ID"),
                "the object store refuses these credentials: set AWS_ACCESS_KEY_ID and "
                f"AWS_SECRET_ACCESS_KEY of a user who may write to {self.url} ({reason})",
            )
        if isinstance(cause, FileNotFoundError):
            bucket = self._root.partition("/")[0]
            return ConfigError(
                "DYNOLAB_STORE",
                self.url,
                f"create the bucket {bucket!r} or name one that exists ({reason})",
            )
        return ConfigError(
            "DYNOLAB_STORE_ENDPOINT",
            self.endpoint,
            f"start the object store there or correct the address ({kind}: {reason})",
        )


def _was_refused(error: Exception) -> bool:
    """Whether the store answered with an error, as opposed to not answering."""
    return isinstance(error, FileExistsError) or isinstance(error.__cause__, OSError)


@contextmanager
def _durable_file(final: Path, data: bytes) -> Iterator[Path]:
    """Writes and syncs a temporary file beside `final`; syncs their folder on exit."""
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
