"""Whatever lies in a store: it counts as nothing, or is refused with one typed error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from dynolab.errors import CorruptData, DynolabError
from dynolab.store import FileEntry, Manifest, Place, Store
from dynolab.store.filesystem import SMALL
from dynolab.store.manifest import hash_bytes, inside

KEY = "9a" * 32
ENTRY = {"size": 1, "sha256": hash_bytes(b"x")}
# The folders of one store serve all examples: each writes what it reads.
MANY = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["../up", "/etc/passwd", "a\0", "1e999", "9" * 5000, "\ud800", KEY]),
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
deep = st.sampled_from([b"[" * 100_000, b'{"a":' * 100_000, b'{"files":' + b"[" * 5000])
names = st.one_of(
    st.sampled_from(
        [
            "../up",
            "/abs",
            "a/../b",
            ".",
            "..",
            "",
            "a//b",
            "a\\b",
            "a\0b",
            "manifest.json",
            "a/b",
            "a",
            "n" * 256,
            "/".join(["n" * 200] * 6),
            "\ud800",
            "~",
            "-rf",
            "a/./b",
            "\n",
            "é",
        ]
    ),
    st.text(max_size=12),
)


def json_bytes(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "replace")


def manifests() -> st.SearchStrategy[bytes]:
    """Documents of any shape; and manifests of which some fields are not what they should be."""
    fields = st.fixed_dictionaries(
        {"stage": st.just("sft"), "key": st.just(KEY), "version": st.just(1)},
        optional={
            "files": anything | st.dictionaries(names, st.just(ENTRY) | anything, max_size=5),
            "parents": anything,
            "config": anything,
            "metrics": anything,
            "step": anything,
            "extra": anything,
            "created": anything,
            "world_size": anything,
            "libraries": anything,
        },
    )
    return st.one_of(
        st.binary(max_size=200), anything.map(json_bytes), fields.map(json_bytes), deep
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("hostile")
    yield Store(f"file://{folder}/store", cache=folder / "cache").place("sft", KEY)


def plant(place: Place, at: str, manifest: bytes) -> str:
    """A commit with a marker that fits whatever manifest it is given; gives its folder."""
    attempt = f"attempt-{uuid4().hex}"
    place._files.replace(f"{at}/{attempt}/manifest.json", manifest)
    marker = {"attempt": attempt, "manifest_sha256": hash_bytes(manifest)}
    place._files.replace(f"{at}/COMMITTED", json_bytes(marker))
    return f"{at}/{attempt}"


@MANY
@given(manifests())
@example(b"")
@example(b"\xff\xfe")
@example(
    json_bytes({"stage": "sft", "key": KEY, "version": 1, "files": {"a": ENTRY, "a/b": ENTRY}})
)
def test_any_manifest_is_none_or_a_whole_one(place: Place, content: bytes) -> None:
    folder = plant(place, place.path, content)
    found = place.committed()
    if found is not None:
        assert (found.manifest.stage, found.manifest.key) == ("sft", KEY)
        assert found.manifest.files == {}  # none of those that it may name are there
        read = place._store.folder(place.address(found), found.manifest.digest)
        assert read == place._files.local(folder)


@MANY
@given(st.binary(max_size=100) | anything.map(json_bytes) | deep)
def test_any_marker_is_no_commit(place: Place, content: bytes) -> None:
    place._files.replace(f"{place.path}/COMMITTED", content)
    assert place.committed() is None


@MANY
@given(manifests())
def test_no_state_that_others_wrote_is_resumed_from(place: Place, content: bytes) -> None:
    plant(place, f"{place.path}/resume/step-00000007", content)
    assert place.newest_resume() is None


@MANY
@given(manifests(), st.text(max_size=80))
def test_a_results_address_leads_to_it_or_to_a_typed_error(
    place: Place, content: bytes, address: str
) -> None:
    folder = plant(place, place.path, content)
    for one in (place._files.address(folder), address, f"{place._files.url}/{address}"):
        with pytest.raises(DynolabError):
            place._store.folder(one, "0" * 64)


@MANY
@given(st.binary(max_size=100) | anything.map(json_bytes) | deep)
def test_any_claim_that_nobody_renews_can_be_waited_out(place: Place, content: bytes) -> None:
    place._files.replace(f"{place.path}/CLAIM", content)
    assert not place.claim().try_acquire()
    assert isinstance(place.claim().holder(), str)


@pytest.mark.parametrize("pid", [0, -1, 10**30, True, 1.5, "1", [1]])
def test_a_claim_may_name_any_process_number(place: Place, pid: Any) -> None:
    from dynolab.store.owner import this_process

    place._files.replace(f"{place.path}/CLAIM", json_bytes({**this_process(), "pid": pid}))
    assert not place.claim().try_acquire()


@given(names)
def test_a_path_that_is_taken_stays_inside_and_can_be_made(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    try:
        inside(name)
    except ValueError:
        return
    root = tmp_path_factory.getbasetemp() / "inside"
    path = root / name
    assert path.resolve().is_relative_to(root.resolve())
    path.parent.mkdir(parents=True, exist_ok=True)


def test_files_that_cannot_lie_side_by_side_are_refused() -> None:
    entry = FileEntry(size=1, sha256=hash_bytes(b"x"))
    for files in ({"a": entry, "a/b": entry}, {"manifest.json": entry}, {"n" * 256: entry}):
        with pytest.raises(ValueError, match="files"):
            Manifest(stage="sft", key=KEY, version=1, files=files)


def whole(store: Store, tmp_path: Path) -> tuple[Place, str, str, str]:
    """A committed result of one file: its place, folder, address and digest."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/weights.bin").write_bytes(b"w" * 1000)
    place = store.place("sft", KEY)
    made = place.commit(tmp_path / "source", Manifest(stage="sft", key=KEY, version=1))
    return place, made.folder, place.address(made), made.manifest.digest


def test_a_manifest_or_marker_beyond_all_size_is_not_read(store: Store, tmp_path: Path) -> None:
    place, folder, address, digest = whole(store, tmp_path)
    huge = b" " * (SMALL + 1)
    store.files.replace(f"{folder}/manifest.json", huge)
    assert place.committed() is None
    with pytest.raises(CorruptData, match="larger than"):
        store.manifest(address, digest)
    store.files.replace(f"{place.path}/COMMITTED", huge)
    assert place.committed() is None
    store.files.replace(f"{place.path}/CLAIM", huge)
    assert not place.claim().try_acquire()


def test_an_object_larger_than_its_manifest_says_is_not_fetched(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, folder, address, digest = whole(store, tmp_path)
    store.files.replace(f"{folder}/weights.bin", b"w" * 100_000)
    monkeypatch.setattr(type(store.files), "download", lambda *_: pytest.fail("was fetched"))
    assert place.committed() is None
    with pytest.raises(CorruptData, match=r"weights\.bin"):
        store.folder(address, digest)


def test_too_many_files_are_refused_before_anything_counts(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynolab.store.commit.SMALL", 100)
    with pytest.raises(DynolabError, match="too many files"):
        whole(store, tmp_path)
    assert store.place("sft", KEY).committed() is None
