"""Whatever lies in a store: it counts as nothing, or is refused with one typed error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from dynolab.errors import CorruptData, DynolabError
from dynolab.store import Place, Store
from dynolab.store.filesystem import SMALL
from dynolab.store.manifest import hash_bytes, inside
from tests.store.results import KEY, json_bytes, manifest, plant, write_files

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
def kept(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The place of all examples: each writes what it reads."""
    folder = tmp_path_factory.mktemp("hostile")
    return Store(f"file://{folder}/store", cache=folder / "cache").place("sft", KEY)


@MANY
@given(manifests())
@example(b"")
@example(b"\xff\xfe")
@example(
    json_bytes({"stage": "sft", "key": KEY, "version": 1, "files": {"a": ENTRY, "a/b": ENTRY}})
)
def test_any_manifest_is_none_or_a_whole_one(kept: Place, content: bytes) -> None:
    folder = plant(kept, content)
    committed = kept.committed()
    if committed is not None:
        assert (committed.manifest.stage, committed.manifest.key) == ("sft", KEY)
        assert committed.manifest.files == {}  # none of those that it may name are there
        read = kept._store.folder(kept.address(committed), committed.manifest.digest)
        assert read == kept._files.local(folder)


@MANY
@given(st.binary(max_size=100) | anything.map(json_bytes) | deep)
def test_any_marker_is_no_commit(kept: Place, content: bytes) -> None:
    kept._files.replace(f"{kept.path}/COMMITTED", content)
    assert kept.committed() is None


@MANY
@given(manifests())
def test_no_state_that_others_wrote_is_resumed_from(kept: Place, content: bytes) -> None:
    plant(kept, content, f"{kept.path}/resume/step-00000007")
    assert kept.newest_resume() is None


@MANY
@given(manifests(), st.text(max_size=80))
def test_a_results_address_leads_to_it_or_to_a_typed_error(
    kept: Place, content: bytes, address: str
) -> None:
    folder = plant(kept, content)
    url = kept._files.url
    for candidate in (kept._files.address(folder), address, f"{url}/{address}"):
        with pytest.raises(DynolabError):
            kept._store.folder(candidate, "0" * 64)


@MANY
@given(st.binary(max_size=100) | anything.map(json_bytes) | deep)
def test_any_claim_that_nobody_renews_can_be_waited_out(kept: Place, content: bytes) -> None:
    kept._files.replace(f"{kept.path}/CLAIM", content)
    assert not kept.claim().try_acquire()
    assert isinstance(kept.claim().holder(), str)


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


def test_a_manifest_marker_or_claim_beyond_all_size_is_not_read(
    store: Store, place: Place, tmp_path: Path
) -> None:
    made = place.commit(write_files(tmp_path / "source", {"weights.bin": b"w"}), manifest())
    huge = b" " * (SMALL + 1)
    store.files.replace(f"{made.folder}/manifest.json", huge)
    assert place.committed() is None
    with pytest.raises(CorruptData, match="larger than"):
        store.manifest(place.address(made), made.manifest.digest)
    store.files.replace(f"{place.path}/COMMITTED", huge)
    assert place.committed() is None
    store.files.replace(f"{place.path}/CLAIM", huge)
    assert not place.claim().try_acquire()


def test_too_many_files_are_refused_before_anything_counts(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynolab.store.commit.SMALL", 100)
    with pytest.raises(DynolabError, match="too many files"):
        place.commit(write_files(tmp_path / "source", {"weights.bin": b"w"}), manifest())
    assert place.committed() is None
