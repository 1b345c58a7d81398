"""Committed files as a machine reads them that does not hold the store: fetched once, verified."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dynolab.errors import CorruptData, StoreError
from dynolab.store import Manifest, Place, Store, read as read_module
from dynolab.store.filesystem import Files

KEY = "5e" * 32


@dataclass
class Result:
    """A committed result of three files, and how it is read."""

    store: Store
    place: Place
    folder: str
    digest: str
    cache: Path
    fetched: list[str]

    @property
    def address(self) -> str:
        return f"{self.store.files.url}/{self.folder}"

    def read(self, subfolder: str | None = None) -> Path:
        return self.store.folder(self.address, self.digest, subfolder)

    def refusal(self, subfolder: str | None = None) -> str:
        with pytest.raises(CorruptData) as caught:
            self.read(subfolder)
        return str(caught.value)

    def changed(self, path: str) -> str:
        return (
            f"{self.address}/{path} is missing or no longer has the bytes that were committed; "
            "compute stage 'sft' again with --fresh"
        )


def commit(tmp_path: Path) -> Result:
    source = tmp_path / "source"
    for name, content in {
        "model/weights.bin": b"w" * 1000,
        "model/config.json": b"{}",
        "summary.json": b"{}",
    }.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    store = Store(f"file://{tmp_path}/store", cache=tmp_path / "deep/cache")
    place = store.place("sft", KEY)
    made = place.commit(source, Manifest(stage="sft", key=KEY, version=1))
    return Result(store, place, made.folder, made.manifest.digest, tmp_path / "deep/cache", [])


@pytest.fixture
def local(tmp_path: Path) -> Result:
    return commit(tmp_path)


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Read as though the store's folder were on another machine."""
    result = commit(tmp_path)
    genuine = Files.download

    def download(self: Files, path: str, target: Path) -> None:
        result.fetched.append(path.removeprefix(f"{result.folder}/"))
        genuine(self, path, target)

    monkeypatch.setattr(Files, "local", lambda *told: None)
    monkeypatch.setattr(Files, "download", download)
    return result


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_local_store_is_read_in_place(local: Result) -> None:
    assert local.read() == local.store.files.local(local.folder)
    assert local.read("model") == local.read() / "model"
    assert not local.cache.exists()


def test_a_remote_result_is_fetched_whole_with_its_manifest(remote: Result) -> None:
    folder = remote.read()
    assert folder == remote.cache / remote.folder
    assert names(folder) == {
        "model/weights.bin",
        "model/config.json",
        "summary.json",
        "manifest.json",
    }
    assert (folder / "model/weights.bin").read_bytes() == b"w" * 1000
    told = Manifest.model_validate_json((folder / "manifest.json").read_bytes())
    assert told == remote.store.manifest(remote.address, remote.digest)
    assert list((remote.cache / "parts").iterdir()) == []


def test_an_empty_result_is_a_folder_with_its_manifest(remote: Result, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    empty = Manifest(stage="sft", key=KEY, version=1)
    made = remote.place.commit(tmp_path / "empty", empty, replace=True)
    folder = remote.store.folder(remote.place.address(made), made.manifest.digest)
    assert folder == remote.cache / made.folder
    assert names(folder) == {"manifest.json"}


def test_a_file_is_fetched_once(remote: Result) -> None:
    remote.read("model")
    assert sorted(remote.fetched) == ["model/config.json", "model/weights.bin"]
    remote.read("model/")
    remote.read()
    remote.read()
    assert sorted(remote.fetched) == ["model/config.json", "model/weights.bin", "summary.json"]


def test_another_process_takes_what_the_first_has_fetched(remote: Result) -> None:
    remote.read()
    remote.fetched.clear()
    remote.store = Store(remote.store.files.url, cache=remote.cache)
    remote.read()
    assert remote.fetched == []


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
    assert remote.refusal("model") == remote.changed("model/weights.bin")
    assert remote.fetched.count("model/weights.bin") == 2
    assert "model/weights.bin" not in names(remote.cache / remote.folder)
    assert list((remote.cache / "parts").iterdir()) == []


def test_what_has_another_size_is_not_even_fetched(remote: Result) -> None:
    remote.store.files.replace(f"{remote.folder}/summary.json", b"{  }")
    assert remote.refusal() == remote.changed("summary.json")
    assert "summary.json" not in remote.fetched
    remote.store.files.remove(f"{remote.folder}/summary.json")
    assert remote.refusal() == remote.changed("summary.json")


def test_a_file_that_vanishes_while_it_is_fetched_is_named(
    remote: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(self: Files, path: str, target: Path) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Files, "download", gone)
    assert remote.refusal("model") == remote.changed("model/config.json")


def test_changed_bytes_of_a_local_store_are_named_with_the_remedy(local: Result) -> None:
    local.store.files.replace(f"{local.folder}/model/weights.bin", b"W" * 1000)
    assert local.refusal() == local.changed("model/weights.bin")
    assert local.refusal("model") == local.changed("model/weights.bin")
    local.store.files.remove(f"{local.folder}/model/weights.bin")
    assert local.refusal() == local.changed("model/weights.bin")


def test_a_file_where_a_folder_was_is_a_missing_one(local: Result) -> None:
    local.store.files.remove_folder(f"{local.folder}/model")
    local.store.files.replace(f"{local.folder}/model", b"")
    assert local.refusal() == local.changed("model/config.json")


def test_a_file_that_was_not_committed_is_named_with_the_remedy(local: Result) -> None:
    stranger = local.read() / "model/deep/code.py"
    stranger.parent.mkdir()
    stranger.write_text("")
    expected = f"{stranger} was not committed with its folder; delete it"
    assert local.refusal() == local.refusal("model") == expected
    stranger.unlink()
    stranger.parent.rmdir()
    stranger.parent.symlink_to(local.read().parent)
    assert local.refusal().startswith(str(stranger.parent))


def test_a_folder_that_there_is_not_is_told_with_those_that_there_are(local: Result) -> None:
    for subfolder in ("modle", "mod", "model/weights.bin"):
        with pytest.raises(StoreError) as caught:
            local.read(subfolder)
        assert str(caught.value) == (
            f"{local.address} holds no folder {subfolder!r}; it holds: model, summary.json"
        )


def test_a_disk_of_this_machine_that_fails_is_told_as_such(
    remote: Result, monkeypatch: pytest.MonkeyPatch
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
    genuine = read_module.hash_file

    def hash_file(path: Path) -> object:
        hashed.append(path.name)
        return genuine(path)

    monkeypatch.setattr(read_module, "hash_file", hash_file)
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
    assert local.refusal("model") == local.changed("model/weights.bin")
    assert len(hashed) == 3
