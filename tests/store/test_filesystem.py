"""The file operations of a store: what is written for good, what is refused and in which words."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from dynolab.errors import CorruptData, StoreError
from dynolab.store import FileEntry, filesystem
from dynolab.store.filesystem import Files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(f"file://{tmp_path}/store/")


def test_listings_name_what_lies_below_a_folder(files: Files, tmp_path: Path) -> None:
    assert files.url == f"file://{tmp_path}/store"
    assert files.address("a/b") == f"{files.url}/a/b"
    assert files.local("a/b") == tmp_path / "store/a/b"
    for path, data in {"a/one": b"1", "a/b/two": b"22", "a/c": b"", "d": b"4"}.items():
        files.create(path, data)
    assert files.sizes("a") == {"one": 1, "b/two": 2, "c": 0}
    assert sorted(files.children("a")) == ["b", "c", "one"]
    assert files.sizes("nowhere") == {} and files.children("nowhere") == []
    for _ in range(2):
        files.remove_folder("a")
    assert files.sizes("a") == {} and files.read("d") == b"4"
    for _ in range(2):
        files.remove("d")
    with pytest.raises(FileNotFoundError):
        files.read("d")


def test_a_file_is_created_once_and_replaced_at_will(files: Files, tmp_path: Path) -> None:
    files.create("deep/down/file", b"first")
    with pytest.raises(FileExistsError, match="deep/down/file"):
        files.create("deep/down/file", b"second")
    assert files.read("deep/down/file") == b"first"
    files.replace("deep/down/file", b"third")
    assert files.read("deep/down/file") == b"third"
    assert [path.name for path in (tmp_path / "store/deep/down").iterdir()] == ["file"]


def test_a_file_that_is_read_whole_has_a_bound(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.create("file", b"12345")
    monkeypatch.setattr(filesystem, "SMALL", 5)
    assert files.read("file") == b"12345"
    monkeypatch.setattr(filesystem, "SMALL", 4)
    with pytest.raises(CorruptData, match="larger than 4 bytes"):
        files.read("file")
    files.replace("file", b"")
    assert files.read("file") == b""
    with pytest.raises(FileNotFoundError):
        files.read("nothing")


def test_what_is_written_is_on_the_disk_before_its_name_is(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both the file's bytes and the folder that names it are synced, in that order."""
    (tmp_path / "source").write_bytes(b"data" * 1000)
    synced: list[tuple[str, bool]] = []
    genuine = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((path.name, (tmp_path / "store/folder/file").exists()))
        genuine(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    files.create("folder/file", b"data")
    (written, named), folder = synced
    assert (written.endswith(".part"), named, folder) == (True, False, ("folder", True))
    synced.clear()
    files.replace("folder/file", b"other")
    assert synced[0][0].endswith(".part") and synced[1] == ("folder", True)
    synced.clear()
    files.remove("folder/file")
    entry = files.upload(tmp_path / "source", "folder/file")
    assert [name for name, _ in synced] == ["file", "folder"]
    assert entry == FileEntry(size=4000, sha256=hashlib.sha256(b"data" * 1000).hexdigest())


def test_a_file_of_several_blocks_is_copied_whole(files: Files, tmp_path: Path) -> None:
    content = os.urandom(2 * 2**20 + 17)
    (tmp_path / "source").write_bytes(content)
    entry = files.upload(tmp_path / "source", "big")
    assert entry == FileEntry(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    files.download("big", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content
    with pytest.raises(StoreError, match=r"cannot write .*/big"):  # an attempt's names are new
        files.upload(tmp_path / "source", "big")
    with pytest.raises(StoreError, match="cannot write"):
        files.upload(tmp_path / "nowhere", "other")


def test_missing_folders_on_the_way_are_an_error_of_the_store(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is missing is the caller's to deal with only where the caller reads."""

    def gone(*arguments: Any, **options: Any) -> None:
        raise FileNotFoundError("gone")

    monkeypatch.setattr(os, "link", gone)
    with pytest.raises(StoreError, match=r"cannot create .*/file: gone"):
        files.create("file", b"")
