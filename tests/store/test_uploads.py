"""In which order and how many at once the files of a result are sent, and what counts then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dynolab.errors import StoreError
from dynolab.store import Place, Store
from dynolab.store.manifest import MANIFEST, Marker, hash_bytes
from tests.messages import exactly
from tests.store.results import KEY, json_bytes, manifest, write_files


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store", cache=tmp_path / "cache")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Five files of 1 to 5 bytes, the largest in the middle of the alphabet."""
    sizes = {"a": 1, "b/c": 3, "b/d": 5, "e": 4, "f": 2}
    files = {name: b"x" * size for name, size in sizes.items()}
    return write_files(tmp_path / "source", files)


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
