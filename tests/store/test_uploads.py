"""In which order and how many at once the files of a result are sent, and what counts then."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dynolab.errors import StoreError
from dynolab.store import FileEntry, Place, Store, commit as commit_module
from dynolab.store.filesystem import Files
from dynolab.store.manifest import MANIFEST, Marker, hash_bytes
from tests.messages import exactly
from tests.store.results import KEY, json_bytes, manifest, write_files

DEADLINE_SECONDS = 20


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store", cache=tmp_path / "cache")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Five files of 1 to 5 bytes, the largest in the middle of the alphabet."""
    sizes = {"a": 1, "b/c": 3, "b/d": 5, "e": 4, "f": 2}
    files = {name: b"x" * size for name, size in sizes.items()}
    return write_files(tmp_path / "source", files)


def test_the_largest_files_are_sent_first_and_are_listed_by_name(
    place: Place, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    genuine = Files.upload

    def upload(self: Files, local: Path, path: str) -> FileEntry:
        sent.append(local.relative_to(source).as_posix())
        assert path.endswith(f"/{sent[-1]}")
        return genuine(self, local, path)

    monkeypatch.setattr(Files, "upload", upload)
    monkeypatch.setattr(commit_module, "FILES_AT_ONCE", 1)
    made = place.commit(source, manifest())
    assert sent == ["b/d", "e", "b/c", "f", "a"]
    assert list(made.manifest.files) == ["a", "b/c", "b/d", "e", "f"]
    for name, entry in made.manifest.files.items():
        content = (source / name).read_bytes()
        assert (entry.size, entry.sha256) == (len(content), hash_bytes(content))


class Sending:
    """Two files at once: the first ends in an error, and those after it take their time."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.sent = error, list[str]()
        self.under_way, self.may_end, self.ended = (threading.Event() for _ in range(3))

    def __call__(self, files: Files, local: Path, path: str) -> FileEntry:
        self.sent.append(local.name)
        if local.name == "d":
            assert self.under_way.wait(DEADLINE_SECONDS)
            raise self.error
        self.under_way.set()
        assert self.may_end.wait(DEADLINE_SECONDS)
        self.ended.set()
        return FileEntry(size=0, sha256=hash_bytes(b""))


@pytest.fixture
def two_at_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failing file is first by name and by size, and a fourth finds nobody free to send it."""
    for name in ("a", "b/c"):
        (source / name).unlink()
    (source / "g").write_bytes(b"x")
    monkeypatch.setattr(commit_module, "FILES_AT_ONCE", 2)


@pytest.mark.usefixtures("two_at_once")
def test_an_error_ends_the_sending_when_nothing_is_under_way(
    place: Place, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is under way could still write into the folder that is taken away."""
    sending = Sending(StoreError("disk full"))
    removed_after: list[bool] = []
    monkeypatch.setattr(Files, "upload", lambda *arguments: sending(*arguments))
    monkeypatch.setattr(
        Files, "remove_folder", lambda *_: removed_after.append(sending.ended.is_set())
    )
    later = threading.Timer(0.05, sending.may_end.set)

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            later.start()
            super().shutdown(wait=wait)

    monkeypatch.setattr(commit_module, "ThreadPoolExecutor", Pool)
    with pytest.raises(StoreError, match="disk full"):
        place.commit(source, manifest())
    later.join()
    assert removed_after == [True]
    assert {"d", "e"} <= set(sending.sent) <= {"d", "e", "f"}


@pytest.mark.usefixtures("two_at_once")
def test_an_interrupt_does_not_wait_for_the_sending(
    place: Place, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = Sending(Interrupted())
    monkeypatch.setattr(Files, "upload", lambda *arguments: sending(*arguments))
    with pytest.raises(Interrupted):
        place.commit(source, manifest())
    assert not sending.ended.is_set()
    sending.may_end.set()
    assert sending.ended.wait(DEADLINE_SECONDS)
    for thread in threading.enumerate():  # until the pool has nothing left to do
        if thread.name.startswith("ThreadPoolExecutor"):
            thread.join(DEADLINE_SECONDS)
    assert {"d", "e"} <= set(sending.sent) <= {"d", "e", "f"}


def test_what_cannot_be_committed_is_named(place: Place, source: Path) -> None:
    link, reserved = source / "b/link", source / "manifest.json"
    link.symlink_to("/etc/passwd")
    refused = f"only plain files not named {MANIFEST} can be committed"
    with pytest.raises(StoreError, match=exactly(f"{link}: {refused}")):
        place.commit(source, manifest())
    link.unlink()
    reserved.write_text("{}")
    with pytest.raises(StoreError, match=exactly(f"{reserved}: {refused}")):
        place.commit(source, manifest())
    reserved.rename(source / "b/manifest.json")  # is the result's own only at the top
    place.commit(source, manifest())
    (source / "back\\slash").write_text("")
    with pytest.raises(StoreError, match="is not a plain relative path"):
        place.commit(source, manifest())


def test_a_commit_is_files_then_manifest_then_marker(
    store: Store, place: Place, source: Path
) -> None:
    made = place.commit(source, manifest(step=3))
    attempt = made.folder.rpartition("/")[2]
    assert made.folder == f"stages/sft/{KEY}/{attempt}"
    assert place.address(made) == f"{store.files.url}/{made.folder}"
    content = store.files.read(f"{made.folder}/manifest.json")
    assert content == made.manifest.to_bytes()
    marker = json.loads(store.files.read(f"{place.path}/COMMITTED"))
    assert marker == {"attempt": attempt, "manifest_sha256": hash_bytes(content)}
    assert Marker.model_validate(marker).signature is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"key": "00" * 32}, f"it belongs to sft {'00' * 32}"),
        ({"stage": "dpo"}, f"it belongs to dpo {KEY}"),
        (
            {"files": {"a": {"size": 7, "sha256": hash_bytes(b"")}}},
            "files are missing or have other sizes",
        ),
    ],
)
def test_a_warning_says_why_something_counts_as_not_committed(
    change: dict[str, Any],
    reason: str,
    store: Store,
    place: Place,
    source: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = place.commit(source, manifest())
    content = json_bytes(json.loads(made.manifest.to_bytes()) | change)
    store.files.replace(f"{made.folder}/manifest.json", content)
    assert place.committed() is None
    attempt = made.folder.rpartition("/")[2]
    marker = Marker(attempt=attempt, manifest_sha256=hash_bytes(content), signature=None)
    store.files.replace(f"{place.path}/COMMITTED", marker.model_dump_json().encode())
    assert place.committed() is None
    where = f"{store.files.url}/{place.path} counts as not committed: "
    assert caplog.messages == [
        f"{where}its manifest is not the one that was committed",
        f"{where}{reason}",
    ]


def test_a_file_beside_those_of_the_manifest_takes_nothing_from_a_commit(
    store: Store, place: Place, source: Path
) -> None:
    made = place.commit(source, manifest())
    store.files.create(f"{made.folder}/more", b"")
    assert place.committed() == made


def test_a_claim_lies_beside_its_result(store: Store, place: Place) -> None:
    with place.claim() as claim:
        assert claim.try_acquire()
        assert store.files.children(f"stages/sft/{KEY}") == ["CLAIM"]
