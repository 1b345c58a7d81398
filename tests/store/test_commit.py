"""Only whole commits count, the first one wins, and what is read is what was committed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dynolab.errors import CorruptData, StoreError
from dynolab.store import FileEntry, Manifest, Place, Store
from dynolab.store.filesystem import Files
from dynolab.store.manifest import MANIFEST, Marker, hash_bytes, inside
from tests.messages import exactly
from tests.store.results import KEY, ON_DISK, contents, json_bytes, manifest, plant, write_files

FILES = {"model/weights.bin": b"w" * 1000, "summary.json": b"{}"}
ENTRY = {"size": 0, "sha256": hash_bytes(b"")}


class Killed(BaseException):
    """Stands for a SIGKILL: no handler of the code under test catches it."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_files(tmp_path / "source", FILES)


def test_a_commit_is_found_and_read_back(store: Store, place: Place, source: Path) -> None:
    assert place.committed() is None
    made = place.commit(source, manifest(metrics={"loss": float("nan"), "acc": 0.5}, step=7))
    committed = place.committed()
    assert committed is not None and committed.folder == made.folder
    assert set(committed.manifest.files) == set(FILES)
    assert str(committed.manifest.metrics) == "{'loss': nan, 'acc': 0.5}"
    address, digest = place.address(committed), committed.manifest.digest
    assert contents(store.folder(address, digest)).items() >= FILES.items()
    model = store.folder(address, digest, "model")
    assert (model.name, contents(model)) == ("model", {"weights.bin": b"w" * 1000})
    attempt = made.folder.rpartition("/")[2]
    assert address == f"{store.files.url}/stages/sft/{KEY}/{attempt}"
    content = store.files.read(f"{made.folder}/manifest.json")
    assert content == made.manifest.to_bytes()
    marker = json.loads(store.files.read(f"{place.path}/COMMITTED"))
    assert marker == {"attempt": attempt, "manifest_sha256": hash_bytes(content)}
    assert Marker.model_validate(marker).signature is None


def test_a_digest_is_the_hash_of_its_sorted_rows() -> None:
    """Whatever moves it throws away every result that is built on another."""
    files = {"b": {"size": 2, "sha256": "1" * 64}, "a/c": {"size": 1, "sha256": "2" * 64}}
    rows = f'[["a/c",1,"{"2" * 64}"],["b",2,"{"1" * 64}"]]'
    made = manifest(files=files, step=3)
    assert made.digest == hashlib.sha256(rows.encode()).hexdigest()
    assert made.sizes == {"a/c": 1, "b": 2}
    assert Manifest.model_validate_json(made.to_bytes()) == made
    assert abs(datetime.now(UTC) - made.created) < timedelta(minutes=5)


@pytest.mark.parametrize("path", ["a" * 256, "é" * 128, "a/" * 511 + "abc"])
def test_names_of_255_bytes_and_paths_of_1024_are_the_longest(path: str) -> None:
    assert inside(path[:-1]) == path[:-1]
    with pytest.raises(ValueError, match="longer than a path may be"):
        inside(path)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (("a", "a/b"), "is the manifest or a folder, not a file"),
        (("manifest.json",), "is the manifest or a folder, not a file"),
        (("a/b/c", "a/b"), "is the manifest or a folder, not a file"),
        (("n" * 256,), "files"),
    ],
)
def test_files_that_cannot_lie_side_by_side_are_no_manifest(
    files: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        manifest(files=dict.fromkeys(files, ENTRY))
    assert manifest(files={"a/manifest.json": ENTRY, "a/b": ENTRY}).sizes


def test_first_commit_wins_and_replace_overrides(
    place: Place, source: Path, tmp_path: Path, store: Store
) -> None:
    first = place.commit(source, manifest(step=1, mlflow_run_id="a"))
    other = write_files(tmp_path / "two", FILES | {"more": b"2"})
    assert place.commit(other, manifest()) == first == place.committed()
    assert len(store.files.children(place.path)) == 2  # the loser's files are gone
    again = place.commit(source, manifest(step=2, mlflow_run_id="b"), replace=True)
    assert place.committed() == again and again.folder != first.folder
    assert again.manifest.digest == first.manifest.digest, "it covers files alone"
    third = place.commit(other, manifest(), replace=True)
    assert place.committed() == third and third.manifest.digest != again.manifest.digest


@pytest.mark.parametrize("dies_at", ["summary.json", "manifest.json", "COMMITTED"])
def test_half_written_attempts_are_never_believed(
    dies_at: str, place: Place, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for method in ("create", "upload"):
            genuine = getattr(Files, method)

            def deadly(self: Files, *arguments: Any, _genuine: Any = genuine) -> Any:
                if any(str(argument).endswith(dies_at) for argument in arguments):
                    raise Killed
                return _genuine(self, *arguments)

            patch.setattr(Files, method, deadly)
        with pytest.raises(Killed):
            place.commit(source, manifest())
    assert place.committed() is None
    assert place.commit(source, manifest()) == place.committed()


def disk_full(files: Files, path: str) -> None:
    raise StoreError("no space left")


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (disk_full, "no space left"),
        (lambda files, path: files.replace(path, b"w" * 500), "does not hold the files sent to it"),
    ],
)
def test_a_failed_upload_leaves_no_files_and_can_be_repeated(
    failure: Callable[[Files, str], None],
    reason: str,
    store: Store,
    place: Place,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    genuine = Files.upload

    def upload(self: Files, local: Path, path: str) -> FileEntry:
        entry = genuine(self, local, path)
        if path.endswith("weights.bin"):
            failure(self, path)
        return entry

    with monkeypatch.context() as patch:
        patch.setattr(Files, "upload", upload)
        with pytest.raises(StoreError, match=reason):
            place.commit(source, manifest())
    assert store.files.sizes(place.path) == {}
    assert place.commit(source, manifest()) == place.committed()


@ON_DISK
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b'{"attempt": "attempt-x", "manifest_sha256": "y"}',
        json_bytes({"attempt": "../../../etc", "manifest_sha256": "0" * 64}),
        json_bytes({"attempt": f"attempt-{uuid4().hex}", "manifest_sha256": "0" * 64}),
    ],
)
def test_a_torn_or_foreign_marker_is_no_commit_and_is_replaced_with_a_warning(
    content: bytes,
    store: Store,
    place: Place,
    source: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place.commit(source, manifest())
    store.files.replace(f"{place.path}/COMMITTED", content)
    assert place.committed() is None
    made = place.commit(source, manifest())
    assert caplog.messages[-1] == (
        f"{store.files.url}/{place.path}/COMMITTED: "
        "the marker is damaged or invalid and is replaced"
    )
    assert made == place.committed()


@ON_DISK
@pytest.mark.parametrize(
    "path", ["../up", "/etc/passwd", "a/../../b", "a//b", "./a", "..\\up", "", "a/\0", "a/."]
)
def test_paths_that_climb_out_are_refused(path: str, place: Place) -> None:
    good = {"stage": "sft", "key": KEY, "version": 1, "files": {}}
    plant(place, json_bytes(good))
    assert place.committed() is not None
    plant(place, json_bytes(good | {"files": {path: ENTRY}}))
    assert place.committed() is None


@pytest.mark.parametrize("size", [999, 100_000, None], ids=["truncated", "grown", "missing"])
def test_a_result_with_a_file_of_another_size_or_without_it_is_no_commit(
    size: int | None, store: Store, place: Place, source: Path
) -> None:
    weights = f"{place.commit(source, manifest()).folder}/model/weights.bin"
    if size is None:
        store.files.remove(weights)
    else:
        store.files.replace(weights, b"w" * size)
    assert place.committed() is None


def test_an_address_must_be_a_result_of_this_store_with_that_digest(
    store: Store, place: Place, source: Path
) -> None:
    made = place.commit(source, manifest())
    address, digest = place.address(made), made.manifest.digest
    assert store.manifest(address, digest) == store.manifest(made.folder, digest) == made.manifest
    for read in (store.manifest, store.folder):
        other_content = exactly(f"{address} has content {digest}, not {'0' * 64}")
        with pytest.raises(CorruptData, match=other_content):
            read(address, "0" * 64)
    for elsewhere in ("file:///etc", f"{store.files.url}/stages/../..", f"{address}/model"):
        no_result = exactly(f"{elsewhere} is not a result of the store {store.files.url}")
        with pytest.raises(StoreError, match=no_result):
            store.folder(elsewhere, digest)
    for change in (Files.remove, lambda files, path: files.replace(path, b"{}")):
        change(store.files, f"{made.folder}/manifest.json")
        with pytest.raises(CorruptData, match=rf"\A{address} has no valid manifest: "):
            store.manifest(address, digest)


@ON_DISK
@pytest.mark.parametrize(
    ("stage", "key"),
    [
        ("../x", KEY),
        ("sft", "../x"),
        ("", KEY),
        ("a/b", KEY),
        ("sft", KEY[:-1]),
        ("Sft", KEY),
        ("sft", KEY + "a"),
    ],
)
def test_places_have_plain_names(store: Store, stage: str, key: str) -> None:
    expected = exactly(f"not a stage name and key: {stage!r}, {key!r}")
    with pytest.raises(ValueError, match=expected):
        store.place(stage, key)


def test_logs_are_kept_whatever_happens(
    store: Store,
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One log cannot be sent, another is a link to nothing; the others are kept."""
    logs = write_files(tmp_path / "logs", {"rank0/out": b"1", "rank0/err": b"boom", "z": b"22"})
    (logs / "gone").symlink_to(tmp_path / "nowhere")
    genuine = Files.upload

    def upload(self: Files, local: Path, path: str) -> FileEntry:
        if local.name == "err":
            raise StoreError("disk full")
        return genuine(self, local, path)

    monkeypatch.setattr(Files, "upload", upload)
    place.upload_logs("first", logs)
    assert caplog.messages == ["a log was not uploaded: disk full"]
    assert store.files.sizes(f"{place.path}/logs/first") == {"rank0/out": 1, "z": 2}
    assert store.files.read(f"{place.path}/logs/first/rank0/out") == b"1"
    assert place.committed() is None


@ON_DISK
def test_what_cannot_be_committed_is_named(place: Place, source: Path) -> None:
    link, reserved = source / "model/link", source / "manifest.json"
    link.symlink_to("/etc/passwd")
    refused = f"only plain files not named {MANIFEST} can be committed"
    with pytest.raises(StoreError, match=exactly(f"{link}: {refused}")):
        place.commit(source, manifest())
    link.unlink()
    reserved.write_text("{}")
    with pytest.raises(StoreError, match=exactly(f"{reserved}: {refused}")):
        place.commit(source, manifest())
    reserved.rename(source / "model/manifest.json")  # is the result's own only at the top
    place.commit(source, manifest())
    (source / "back\\slash").write_text("")
    with pytest.raises(StoreError, match="is not a plain relative path"):
        place.commit(source, manifest())


@ON_DISK
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
