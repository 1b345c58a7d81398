"""Verified local folders of committed files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from dynolab.errors import CorruptData, StoreError
from dynolab.store.commit import Committed
from dynolab.store.filesystem import Files
from dynolab.store.manifest import MANIFEST, FileEntry, hash_file

_Stamp = tuple[int, int, int, int]


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
        wanted = {p: e for p, e in source.manifest.files.items() if p.startswith(prefix)}
        if prefix and not wanted:
            names = ", ".join(sorted({path.partition("/")[0] for path in source.manifest.files}))
            address = self._files.address(source.folder)
            raise StoreError(f"{address} holds no folder {subfolder!r}; it holds: {names}")
        in_place = self._files.local(source.folder)
        root = in_place or self._cache / source.folder
        missing = [path for path, entry in wanted.items() if not self._holds(root / path, entry)]
        if missing and in_place:
            raise CorruptData(self._changed(source, missing[0]))
        if not in_place:
            self._fetch_all(source, missing, root)
        folder = root / prefix
        _refuse_unlisted(folder, {root / path for path in wanted} | {root / MANIFEST})
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
        return (
            f"{self._files.address(source.folder)}/{path} is missing or no longer has the bytes "
            f"that were committed; compute stage {source.manifest.stage!r} again with --fresh"
        )


def _refuse_unlisted(folder: Path, listed: set[Path]) -> None:
    """Raises CorruptData for files outside the manifest: they would be loaded unverified."""
    for path in folder.rglob("*"):
        if (path.is_symlink() or not path.is_dir()) and path not in listed:
            raise CorruptData(f"{path} was not committed with its folder; delete it")
