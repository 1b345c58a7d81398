"""How a folder's files are sent, what is written when, and how a state or result is found again."""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dynolab.errors import CorruptData, StoreError
from dynolab.store import FileEntry, Manifest, Place, Store, commit as commit_module
from dynolab.store.filesystem import Files
from dynolab.store.manifest import MANIFEST, Marker, hash_bytes

KEY = "4c" * 32
DEADLINE_SECONDS = 20


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


def manifest(**told: Any) -> Manifest:
    return Manifest(stage="sft", key=KEY, version=1, **told)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store", cache=tmp_path / "cache")


@pytest.fixture
def place(store: Store) -> Place:
    return store.place("sft", KEY)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Five files of 1 to 5 bytes, the largest in the middle of the alphabet."""
    for name, size in {"a": 1, "b/c": 3, "b/d": 5, "e": 4, "f": 2}.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    return tmp_path / "source"


def state(place: Place, step: int, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "weights.bin").write_bytes(b"%d" % step)
    place.commit_resume(step, folder, manifest())


def states(store: Store, place: Place) -> list[str]:
    return sorted(store.files.children(f"{place.path}/resume"))


def test_the_largest_files_are_sent_first_and_are_told_by_name(
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
    monkeypatch.setattr(Files, "upload", lambda *told: sending(*told))
    monkeypatch.setattr(
        Files, "remove_folder", lambda *told: removed_after.append(sending.ended.is_set())
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
def test_who_interrupts_does_not_wait_for_the_sending(
    place: Place, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = Sending(Interrupted())
    monkeypatch.setattr(Files, "upload", lambda *told: sending(*told))
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
    refused = f"only plain files not named {MANIFEST} can be committed"
    (source / "b/link").symlink_to(source)
    with pytest.raises(StoreError) as caught:
        place.commit(source, manifest())
    assert str(caught.value) == f"{source}/b/link: {refused}"
    (source / "b/link").unlink()
    (source / "b/manifest.json").write_text("{}")  # is the result's own only at the top
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
    told = json.loads(store.files.read(f"{place.path}/COMMITTED"))
    assert told == {"attempt": attempt, "manifest_sha256": hash_bytes(content)}
    assert Marker.model_validate(told).signature is None


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
def test_why_something_counts_as_not_committed_is_told(
    change: dict[str, Any],
    reason: str,
    store: Store,
    place: Place,
    source: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = place.commit(source, manifest())
    content = json.dumps(json.loads(made.manifest.to_bytes()) | change).encode()
    store.files.replace(f"{made.folder}/manifest.json", content)
    assert place.committed() is None
    marker = Marker(
        attempt=made.folder.rpartition("/")[2], manifest_sha256=hash_bytes(content), signature=None
    )
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


def test_a_torn_marker_that_is_replaced_is_told(
    store: Store, place: Place, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.files.create(f"{place.path}/COMMITTED", b"{}")
    assert place.commit(source, manifest()) == place.committed()
    assert caplog.messages[-1] == (
        f"{store.files.url}/{place.path}/COMMITTED: the marker is torn or foreign and is replaced"
    )


def test_a_state_is_of_a_step_from_zero_on(store: Store, place: Place, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="step -1 is negative"):
        state(place, -1, tmp_path / "state")
    state(place, 0, tmp_path / "state")
    assert states(store, place) == ["step-00000000"]
    found = place.newest_resume()
    assert found is not None and found[0] == 0
    assert (found[1] / "weights.bin").read_bytes() == b"0"


def test_states_are_ordered_by_number(store: Store, place: Place, tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000):
        state(place, step, tmp_path / "state")
    found = place.newest_resume()
    assert found is not None and found[0] == 100_000_000


def test_states_before_the_newest_whole_ones_are_deleted_and_no_others(
    store: Store, place: Place, tmp_path: Path
) -> None:
    for step in (20, 30):
        state(place, step, tmp_path / "state")
    for step in (10, 25, 40):  # whose writers were killed
        store.files.create(f"{place.path}/resume/step-{step:08d}/attempt-0/weights.bin", b"")
    state(place, 35, tmp_path / "state")
    assert states(store, place) == [f"step-{step:08d}" for step in (30, 35, 40)]
    state(place, 60, tmp_path / "state")
    assert states(store, place) == [f"step-{step:08d}" for step in (35, 40, 60)]
    state(place, 50, tmp_path / "state")  # a run that went on from an older one
    assert states(store, place) == [f"step-{step:08d}" for step in (35, 40, 50, 60)]


def test_a_state_is_kept_where_older_ones_cannot_be_deleted(
    store: Store,
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def unreachable(self: Files, path: str) -> None:
        raise StoreError("no answer")

    monkeypatch.setattr(Files, "remove", unreachable)
    for step in (10, 20, 30):
        state(place, step, tmp_path / "state")
    assert caplog.messages == ["older resume states stay for now: no answer"]
    found = place.newest_resume()
    assert found is not None and found[0] == 30
    assert len(states(store, place)) == 3


def test_a_half_deleted_state_is_not_believed(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker goes before the files do."""

    def unreachable(self: Files, path: str) -> None:
        raise StoreError("no answer")

    state(place, 10, tmp_path / "state")
    monkeypatch.setattr(Files, "remove_folder", unreachable)
    with pytest.raises(StoreError, match="no answer"):
        place.clear_resume()
    assert place.newest_resume() is None


def test_a_state_at_anothers_step_is_passed_over_and_told(
    store: Store, place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state(place, 10, tmp_path / "state")
    resume = f"{place.path}/resume"
    for name in store.files.sizes(f"{resume}/step-00000010"):
        content = store.files.read(f"{resume}/step-00000010/{name}")
        store.files.replace(f"{resume}/step-00000090/{name}", content)
    found = place.newest_resume()
    assert found is not None and found[0] == 10
    assert caplog.messages == ["resume state of step 10 lies at step 90"]


def test_a_spoiled_state_is_left_and_told(
    store: Store, place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (10, 20):
        state(place, step, tmp_path / "state")
    folder = f"{place.path}/resume/step-00000020"
    (name,) = [name for name in store.files.sizes(folder) if name.endswith("weights.bin")]
    store.files.replace(f"{folder}/{name}", b"??")
    found = place.newest_resume()
    assert found is not None and found[0] == 10
    (told,) = caplog.messages
    assert told.startswith("resume state of step 20 is left for the one before: ")
    assert states(store, place) == ["step-00000010", "step-00000020"]


def test_an_address_is_followed_to_its_manifest_or_refused_by_name(
    store: Store, place: Place, source: Path
) -> None:
    made = place.commit(source, manifest())
    address, digest = place.address(made), made.manifest.digest
    assert store.manifest(address, digest) == store.manifest(made.folder, digest) == made.manifest
    with pytest.raises(CorruptData) as caught:
        store.manifest(address, "0" * 64)
    assert str(caught.value) == f"{address} has content {digest}, not {'0' * 64}"
    with pytest.raises(StoreError) as refused:
        store.manifest(f"{address}/model", digest)
    assert str(refused.value) == f"{address}/model is no result of the store {store.files.url}"
    store.files.replace(f"{made.folder}/manifest.json", b"{}")
    with pytest.raises(CorruptData) as lost:
        store.manifest(address, digest)
    assert str(lost.value).startswith(f"{address} has lost its manifest: ")
    store.files.remove(f"{made.folder}/manifest.json")
    with pytest.raises(CorruptData) as lost:
        store.manifest(address, digest)
    assert str(lost.value).startswith(f"{address} has lost its manifest: ")


@pytest.mark.parametrize(("stage", "key"), [("sft", KEY[:-1]), ("Sft", KEY), ("sft", KEY + "a")])
def test_what_is_no_stage_name_and_key_is_named(store: Store, stage: str, key: str) -> None:
    with pytest.raises(ValueError, match="not a stage name and key") as caught:
        store.place(stage, key)
    assert str(caught.value) == f"not a stage name and key: {stage!r}, {key!r}"


def test_a_claim_lies_beside_its_result(store: Store, place: Place) -> None:
    with place.claim() as claim:
        assert claim.try_acquire()
        assert store.files.children(f"stages/sft/{KEY}") == ["CLAIM"]


def test_a_log_that_cannot_be_kept_is_told_and_the_others_are_kept(
    store: Store,
    place: Place,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    genuine = Files.upload

    def upload(self: Files, local: Path, path: str) -> FileEntry:
        if local.name == "c":
            raise StoreError("disk full")
        return genuine(self, local, path)

    monkeypatch.setattr(Files, "upload", upload)
    with caplog.at_level(logging.WARNING):
        place.upload_logs("attempt-1", source)
    assert store.files.sizes(f"{place.path}/logs/attempt-1") == {"a": 1, "b/d": 5, "e": 4, "f": 2}
    assert caplog.messages == ["a log was not kept: disk full"]
