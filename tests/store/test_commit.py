"""Only whole commits count, the first one wins, and what is read is what was committed."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dynolab.errors import CorruptData, StoreError
from dynolab.store import Manifest, Place, Store
from dynolab.store.filesystem import Files
from dynolab.store.manifest import hash_bytes, hash_file, inside

KEY = "ab" * 32


class Killed(BaseException):
    """Stands for a SIGKILL: no handler of the code under test catches it."""


def manifest(**told: Any) -> Manifest:
    return Manifest(stage="sft", key=KEY, version=1, **told)


def folder(root: Path, **files: bytes) -> Path:
    for name, content in (
        {"model/weights.bin": b"w" * 1000, "summary.json": b"{}"} | files
    ).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


@pytest.fixture
def place(store: Store) -> Place:
    return store.place("sft", KEY)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return folder(tmp_path / "source")


def overwrite(store: Store, path: str, data: bytes) -> None:
    store.files.replace(path, data)


def test_a_commit_is_found_and_read_back(store: Store, place: Place, source: Path) -> None:
    assert place.committed() is None
    made = place.commit(source, manifest(metrics={"loss": float("nan"), "acc": 0.5}, step=7))
    found = place.committed()
    assert found is not None
    assert found.folder == made.folder
    assert set(found.manifest.files) == {"model/weights.bin", "summary.json"}
    assert found.manifest.metrics["acc"] == 0.5
    assert found.manifest.metrics["loss"] != found.manifest.metrics["loss"]
    local = store.folder(place.address(found), found.manifest.digest)
    assert (local / "model/weights.bin").read_bytes() == b"w" * 1000
    model = store.folder(place.address(found), found.manifest.digest, "model")
    assert model.name == "model"
    assert [path.name for path in model.iterdir()] == ["weights.bin"]


def test_an_empty_result_can_be_committed(store: Store, place: Place, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    made = place.commit(tmp_path / "empty", manifest(metrics={"n": 1.0}))
    assert place.committed() == made
    assert store.folder(place.address(made), made.manifest.digest).is_dir()


def test_digest_covers_files_alone(tmp_path: Path, place: Place, source: Path) -> None:
    first = place.commit(source, manifest(step=1, mlflow_run_id="a"))
    again = place.commit(source, manifest(step=2, mlflow_run_id="b"), replace=True)
    other = place.commit(folder(tmp_path / "o", extra=b"x"), manifest(), replace=True)
    assert first.folder != again.folder
    assert first.manifest.digest == again.manifest.digest != other.manifest.digest


def test_a_digest_is_the_hash_of_its_sorted_rows() -> None:
    """Whatever moves it throws away every result that is built on another."""
    files = {"b": {"size": 2, "sha256": "1" * 64}, "a/c": {"size": 1, "sha256": "2" * 64}}
    rows = f'[["a/c",1,"{"2" * 64}"],["b",2,"{"1" * 64}"]]'
    made = manifest(files=files, step=3)
    assert made.digest == hashlib.sha256(rows.encode()).hexdigest()
    assert made.sizes == {"a/c": 1, "b": 2}
    assert Manifest.model_validate_json(made.to_bytes()) == made
    assert abs(datetime.now(UTC) - made.created) < timedelta(minutes=5)


def test_a_file_is_known_by_its_size_and_sha256(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    found = hash_file(tmp_path / "file")
    assert (found.size, found.sha256) == (3, hashlib.sha256(b"abc").hexdigest())
    assert hash_bytes(b"abc") == found.sha256


@pytest.mark.parametrize(
    ("path", "fits"),
    [
        ("a" * 255, True),
        ("a" * 256, False),
        ("é" * 128, False),
        ("a/" * 511 + "ab", True),
        ("a/" * 511 + "abc", False),
    ],
)
def test_names_and_paths_are_no_longer_than_a_store_takes(path: str, fits: bool) -> None:
    """255 bytes of a name, 1,024 of a path."""
    if fits:
        assert inside(path) == path
    else:
        with pytest.raises(ValueError, match="longer than a path can be"):
            inside(path)


@pytest.mark.parametrize("files", [("a", "a/b"), ("manifest.json",), ("a/b/c", "a/b")])
def test_files_that_cannot_lie_side_by_side_are_no_manifest(files: tuple[str, ...]) -> None:
    entry = {"size": 0, "sha256": hash_bytes(b"")}
    with pytest.raises(ValueError, match="cannot be one of its files"):
        manifest(files=dict.fromkeys(files, entry))
    assert manifest(files={"a/manifest.json": entry, "a/b": entry}).sizes


def test_first_commit_wins_and_replace_overrides(
    place: Place, source: Path, tmp_path: Path, store: Store
) -> None:
    first = place.commit(source, manifest())
    second = place.commit(folder(tmp_path / "two", more=b"2"), manifest())
    assert second == first == place.committed()
    assert len(store.files.children(place.path)) == 2  # the loser's files are gone
    third = place.commit(folder(tmp_path / "two"), manifest(), replace=True)
    assert place.committed() == third != first


@pytest.mark.parametrize("dies_at", ["summary.json", "manifest.json", "COMMITTED"])
def test_half_written_attempts_are_never_believed(
    dies_at: str, place: Place, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for method in ("create", "upload"):
            genuine = getattr(Files, method)

            def deadly(self: Files, *a: Any, _do: Any = genuine) -> Any:
                if any(str(x).endswith(dies_at) for x in a):
                    raise Killed
                return _do(self, *a)

            patch.setattr(Files, method, deadly)
        with pytest.raises(Killed):
            place.commit(source, manifest())
    assert place.committed() is None
    assert place.commit(source, manifest()) == place.committed()


def test_a_failed_upload_leaves_no_files(
    store: Store, place: Place, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = Files.upload

    def full(self: Files, local: Path, path: str) -> Any:
        if path.endswith("summary.json"):
            raise StoreError("no space left")
        return genuine(self, local, path)

    monkeypatch.setattr(Files, "upload", full)
    with pytest.raises(StoreError, match="no space"):
        place.commit(source, manifest())
    assert store.files.sizes(place.path) == {}


TORN = [
    b"",
    b"{",
    b"\xff\xfe\x00",
    b"[]",
    b'{"attempt": "attempt-x", "manifest_sha256": "y"}',
    json.dumps({"attempt": "../../../etc", "manifest_sha256": "0" * 64}).encode(),
    json.dumps({"attempt": f"attempt-{uuid4().hex}", "manifest_sha256": "0" * 64}).encode(),
]


@pytest.mark.parametrize("content", TORN)
def test_a_torn_or_foreign_marker_is_no_commit_and_is_healed(
    content: bytes, store: Store, place: Place, source: Path
) -> None:
    place.commit(source, manifest())
    overwrite(store, f"{place.path}/COMMITTED", content)
    assert place.committed() is None
    assert place.commit(source, manifest()) == place.committed()


def forged(store: Store, place: Place, document: dict[str, Any]) -> None:
    """A marker that fits whatever manifest it is given."""
    attempt, content = f"attempt-{uuid4().hex}", json.dumps(document).encode()
    overwrite(store, f"{place.path}/{attempt}/manifest.json", content)
    marker = {"attempt": attempt, "manifest_sha256": hash_bytes(content)}
    overwrite(store, f"{place.path}/COMMITTED", json.dumps(marker).encode())


@pytest.mark.parametrize(
    "path", ["../up", "/etc/passwd", "a/../../b", "a//b", "./a", "..\\up", "", "a/\0", "a/."]
)
def test_paths_that_climb_out_are_refused(path: str, store: Store, place: Place) -> None:
    good = {"stage": "sft", "key": KEY, "version": 1, "files": {}}
    forged(store, place, good)
    assert place.committed() is not None
    entry = {"size": 0, "sha256": hash_bytes(b"")}
    forged(store, place, good | {"files": {path: entry}})
    assert place.committed() is None


def test_anothers_manifest_is_no_commit(store: Store, place: Place) -> None:
    forged(store, place, {"stage": "sft", "key": "cd" * 32, "version": 1})
    assert place.committed() is None
    forged(store, place, {"stage": "dpo", "key": KEY, "version": 1})
    assert place.committed() is None


def test_a_manifest_that_was_changed_since_is_no_commit(
    store: Store, place: Place, source: Path
) -> None:
    made = place.commit(source, manifest(step=7))
    path = f"{made.folder}/manifest.json"
    overwrite(store, path, made.manifest.model_copy(update={"step": 8}).to_bytes())
    assert place.committed() is None
    overwrite(store, path, made.manifest.to_bytes())
    assert place.committed() == made


def test_what_the_store_kept_half_of_is_not_committed(
    store: Store, place: Place, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = Files.upload

    def halved(self: Files, local: Path, path: str) -> Any:
        entry = genuine(self, local, path)
        if path.endswith("weights.bin"):
            overwrite(store, path, b"w" * 500)
        return entry

    with monkeypatch.context() as patch:
        patch.setattr(Files, "upload", halved)
        with pytest.raises(StoreError, match="does not hold what was sent to it"):
            place.commit(source, manifest())
    assert store.files.sizes(place.path) == {}
    assert place.commit(source, manifest()) == place.committed()


def test_missing_and_truncated_files_are_no_commit(
    store: Store, place: Place, source: Path
) -> None:
    made = place.commit(source, manifest())
    overwrite(store, f"{made.folder}/model/weights.bin", b"w" * 999)
    assert place.committed() is None
    made = place.commit(source, manifest())
    store.files.remove(f"{made.folder}/summary.json")
    assert place.committed() is None


def test_changed_bytes_are_detected_on_read(store: Store, place: Place, source: Path) -> None:
    made = place.commit(source, manifest())
    overwrite(store, f"{made.folder}/model/weights.bin", b"W" * 1000)
    address, digest = place.address(made), made.manifest.digest
    with pytest.raises(CorruptData, match=r"weights\.bin.*--fresh"):
        store.folder(address, digest)
    assert (store.manifest(address, digest)) == made.manifest  # that file alone is spoilt


def test_bytes_that_change_after_the_first_read_are_detected(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}/store", cache=tmp_path / "cache")
    place = store.place("sft", KEY)
    made = place.commit(folder(tmp_path / "source"), manifest())
    address, digest = place.address(made), made.manifest.digest
    weights = store.folder(address, digest, "model") / "weights.bin"
    times = weights.stat().st_mtime_ns
    weights.write_bytes(b"W" * 1000)
    os.utime(weights, ns=(times, times))
    with pytest.raises(CorruptData):
        store.folder(address, digest, "model")


def test_a_spoiled_local_copy_is_fetched_again(
    s3_server: str, s3_bucket: str, tmp_path: Path
) -> None:
    store = Store(f"s3://{s3_bucket}/lab", cache=tmp_path / "cache", endpoint=s3_server)
    place = store.place("sft", KEY)
    made = place.commit(folder(tmp_path / "source"), manifest())
    address, digest = place.address(made), made.manifest.digest
    weights = store.folder(address, digest) / "model/weights.bin"
    assert weights.is_relative_to(tmp_path / "cache")
    weights.write_bytes(b"?")
    assert (store.folder(address, digest) / "model/weights.bin").read_bytes() == b"w" * 1000
    assert not list((tmp_path / "cache/parts").iterdir())


def test_files_beside_the_committed_ones_are_refused(
    store: Store, place: Place, source: Path
) -> None:
    made = place.commit(source, manifest())
    local = store.folder(place.address(made), made.manifest.digest, "model")
    (local / "modeling_evil.py").write_text("raise SystemExit")
    with pytest.raises(CorruptData, match=r"modeling_evil\.py"):
        store.folder(place.address(made), made.manifest.digest, "model")


def test_an_address_must_be_a_result_of_this_store_with_that_digest(
    store: Store, place: Place, source: Path
) -> None:
    made = place.commit(source, manifest())
    address, digest = place.address(made), made.manifest.digest
    assert store.manifest(address, digest) == made.manifest
    with pytest.raises(CorruptData):
        store.folder(address, "0" * 64)
    for elsewhere in ("file:///etc", f"{store.files.url}/stages/../..", address + "/model"):
        with pytest.raises(StoreError, match="no result"):
            store.folder(elsewhere, digest)
    with pytest.raises(StoreError, match=r"no folder 'modle'; it holds: model, summary\.json"):
        store.folder(address, digest, "modle")


def test_links_and_reserved_names_are_not_committed(
    place: Place, source: Path, tmp_path: Path
) -> None:
    (source / "link").symlink_to("/etc/passwd")
    with pytest.raises(StoreError, match="only plain files"):
        place.commit(source, manifest())
    (source / "link").unlink()
    (source / "manifest.json").write_text("{}")
    with pytest.raises(StoreError, match="only plain files"):
        place.commit(source, manifest())


@pytest.mark.parametrize(
    ("stage", "key"), [("../x", KEY), ("sft", "../x"), ("", KEY), ("a/b", KEY)]
)
def test_places_have_plain_names(store: Store, stage: str, key: str) -> None:
    with pytest.raises(ValueError, match="not a stage name"):
        store.place(stage, key)


def test_logs_are_kept_whatever_happens(store: Store, place: Place, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    (logs / "rank0").mkdir(parents=True)
    (logs / "rank0/stderr.log").write_text("boom")
    (logs / "gone").symlink_to(tmp_path / "nowhere")
    place.upload_logs("first", logs)
    assert store.files.read(f"{place.path}/logs/first/rank0/stderr.log") == b"boom"
    assert place.committed() is None
