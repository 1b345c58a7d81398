"""Committed files as a machine reads them that does not hold the store: fetched once, verified."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dynolab.errors import CorruptData, StoreError
from dynolab.store import Place, Store, store as store_module
from dynolab.store.filesystem import Files
from tests.messages import exactly
from tests.store.results import KEY, contents, manifest, write_files

FILES = {
    "model/weights.bin": b"w" * 1000,
    "model/config.json": b"{}",
    "summary.json": b"{}",
}


class Result:
    """A committed result of three files, and how it is read."""

    def __init__(self, folder: Path) -> None:
        self.cache, self.fetched = folder / "deep/cache", list[str]()
        self.store = Store(f"file://{folder}/store", cache=self.cache)
        self.place: Place = self.store.place("sft", KEY)
        made = self.place.commit(write_files(folder / "source", FILES), manifest())
        self.folder, self.manifest = made.folder, made.manifest
        self.address = self.place.address(made)

    def read(self, subfolder: str | None = None) -> Path:
        return self.store.folder(self.address, self.manifest.digest, subfolder)

    def refuses(self, path: str, subfolder: str | None = None) -> None:
        """The file at this path is named, with the remedy."""
        expected = (
            f"{self.address}/{path} is missing or no longer has the bytes that were committed; "
            f"dynolab verify --remove sft/{KEY[:12]} removes this result alone, and the next run "
            "computes it again"
        )
        with pytest.raises(CorruptData, match=exactly(expected)):
            self.read(subfolder)


@pytest.fixture
def local(tmp_path: Path) -> Result:
    return Result(tmp_path)


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Read as though the store's folder were on another machine."""
    result = Result(tmp_path)
    genuine = Files.download

    def download(self: Files, path: str, target: Path) -> None:
        result.fetched.append(path.removeprefix(f"{result.folder}/"))
        genuine(self, path, target)

    monkeypatch.setattr(Files, "local", lambda *_: None)
    monkeypatch.setattr(Files, "download", download)
    return result


def test_a_remote_result_is_fetched_whole_with_its_manifest(remote: Result, tmp_path: Path) -> None:
    folder = remote.read()
    assert folder == remote.cache / remote.folder
    assert contents(folder) == FILES | {"manifest.json": remote.manifest.to_bytes()}
    assert list((remote.cache / "parts").iterdir()) == []
    (tmp_path / "empty").mkdir()
    made = remote.place.commit(tmp_path / "empty", manifest(), replace=True)
    folder = remote.store.folder(remote.place.address(made), made.manifest.digest)
    assert folder == remote.cache / made.folder
    assert contents(folder) == {"manifest.json": made.manifest.to_bytes()}


def test_a_file_is_fetched_once(remote: Result) -> None:
    remote.read("model")
    assert sorted(remote.fetched) == ["model/config.json", "model/weights.bin"]
    for subfolder in ("model/", None, None):
        remote.read(subfolder)
    assert sorted(remote.fetched) == ["model/config.json", "model/weights.bin", "summary.json"]


@pytest.mark.parametrize(
    "spoil",
    [Path.unlink, lambda file: file.write_bytes(b"W" * 1000), lambda file: file.write_bytes(b"")],
    ids=["deleted", "changed", "emptied"],
)
def test_a_copy_that_was_spoiled_is_fetched_again(
    spoil: Callable[[Path], object], remote: Result
) -> None:
    weights = remote.read() / "model/weights.bin"
    remote.fetched.clear()
    spoil(weights)
    assert remote.read() / "model/weights.bin" == weights
    assert weights.read_bytes() == b"w" * 1000
    assert remote.fetched == ["model/weights.bin"]


def test_bytes_that_the_network_spoiled_are_fetched_a_second_time(
    remote: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = Files.download

    def download(self: Files, path: str, target: Path) -> None:
        genuine(self, path, target)
        if len(remote.fetched) == 1:
            target.write_bytes(b"?")

    monkeypatch.setattr(Files, "download", download)
    assert (remote.read("model") / "weights.bin").read_bytes() == b"w" * 1000
    assert len(remote.fetched) == 3


def test_bytes_that_differ_twice_are_refused_and_not_kept(remote: Result) -> None:
    remote.store.files.replace(f"{remote.folder}/model/weights.bin", b"W" * 1000)
    remote.refuses("model/weights.bin", "model")
    assert remote.fetched.count("model/weights.bin") == 2
    assert "model/weights.bin" not in contents(remote.cache / remote.folder)
    assert list((remote.cache / "parts").iterdir()) == []
    remote.store.files.replace(f"{remote.folder}/model/weights.bin", b"W")
    remote.refuses("model/weights.bin", "model")
    assert remote.fetched.count("model/weights.bin") == 2, "another size is not even fetched"
    remote.store.files.remove(f"{remote.folder}/model/weights.bin")
    remote.refuses("model/weights.bin", "model")


def test_a_local_store_is_read_in_place_and_changed_bytes_are_named(local: Result) -> None:
    assert local.read() == local.store.files.local(local.folder)
    weights = local.read("model") / "weights.bin"
    assert weights == local.read() / "model/weights.bin"
    assert not local.cache.exists()
    written = weights.stat().st_mtime_ns
    weights.write_bytes(b"W" * 1000)
    os.utime(weights, ns=(written, written))  # whoever changes bytes can set the time back
    for subfolder in (None, "model"):
        local.refuses("model/weights.bin", subfolder)
    weights.unlink()
    local.refuses("model/weights.bin")


@pytest.mark.parametrize("where", ["local", "remote"])
@pytest.mark.parametrize("subfolder", [None, "model"])
def test_a_file_that_was_not_committed_is_named_with_the_remedy(
    where: str, subfolder: str | None, request: pytest.FixtureRequest
) -> None:
    result: Result = request.getfixturevalue(where)
    deep = result.read() / "model/deep"
    write_files(deep, {"code.py": b"raise SystemExit"})
    expected = f"{deep}/code.py was not committed with its folder; delete it"
    with pytest.raises(CorruptData, match=exactly(expected)):
        result.read(subfolder)
    shutil.rmtree(deep)
    deep.symlink_to(result.read().parent)
    with pytest.raises(CorruptData, match=rf"\A{deep}"):
        result.read(subfolder)


@pytest.mark.parametrize("subfolder", ["modle", "mod", "model/weights.bin"])
def test_a_folder_that_there_is_not_is_named_with_those_that_there_are(
    subfolder: str, local: Result
) -> None:
    expected = f"{local.address} holds no folder {subfolder!r}; it holds: model, summary.json"
    with pytest.raises(StoreError, match=exactly(expected)):
        local.read(subfolder)


def test_a_disk_of_this_machine_that_fails_is_named_as_such(
    remote: Result,
) -> None:
    remote.cache.parent.mkdir()
    remote.cache.write_text("a file where the cache should be")
    with pytest.raises(StoreError) as caught:
        remote.read()
    assert str(caught.value) == (
        f"cannot read {remote.address} on this machine: {caught.value.__cause__}"
    )
    assert str(remote.cache) in str(caught.value)


def test_a_file_is_hashed_once_until_it_is_written_again(
    local: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    genuine = store_module.hash_file

    def hash_file(path: Path) -> object:
        hashed.append(path.name)
        return genuine(path)

    monkeypatch.setattr(store_module, "hash_file", hash_file)
    weights = local.read("model") / "weights.bin"
    assert sorted(hashed) == ["config.json", "weights.bin"]
    local.read("model")
    assert len(hashed) == 2
    written = weights.stat().st_mtime_ns
    weights.write_bytes(b"w" * 1000)
    os.utime(weights, ns=(written, written + 1))
    local.read("model")
    assert hashed[2:] == ["weights.bin"]
    weights.write_bytes(b"w" * 999)  # another size tells without a hash
    local.refuses("model/weights.bin", "model")
    assert len(hashed) == 3
