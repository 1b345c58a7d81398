"""The newest intact resume state that bears this platform's signature counts; two are kept."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from dynolab.errors import StoreError
from dynolab.store import Place, Store
from dynolab.store.commit import Signer, process_key
from dynolab.store.filesystem import Files
from dynolab.store.manifest import hash_bytes
from tests.store.results import (
    KEY,
    ON_DISK,
    json_bytes,
    manifest,
    newest,
    save_states,
    state_folder,
    states,
    write_files,
)


def names(*steps: int) -> list[str]:
    return [f"step-{step:08d}" for step in steps]


def spoil(place: Place, step: int) -> None:
    folder = state_folder(step)
    (name,) = [name for name in place._files.sizes(folder) if name.endswith("engine.bin")]
    place._files.replace(f"{folder}/{name}", b"??????")


def unreachable(self: Files, path: str) -> None:
    raise StoreError("no answer")


def test_the_newest_two_are_kept_until_all_are_cleared(place: Place, tmp_path: Path) -> None:
    assert newest(place) is None
    save_states(place, tmp_path, 50, 100, 150)
    assert states(place) == names(100, 150)
    assert newest(place) == 150
    assert place.committed() is None  # a resume state is no result
    place._files.remove(f"{state_folder(150)}/COMMITTED")
    assert newest(place) == 100
    place.clear_resume()
    assert (newest(place), states(place)) == (None, [])
    save_states(place, tmp_path, 99_999_999, 100_000_000)
    assert newest(place) == 100_000_000  # by number


def test_as_many_are_kept_as_the_store_is_told_to(
    store_settings: dict[str, str | None], tmp_path: Path
) -> None:
    place = Store(cache=tmp_path / "cache", keep=3, **store_settings).place("sft", KEY)
    save_states(place, tmp_path, 50, 100, 150, 200)
    assert states(place) == names(100, 150, 200)


def test_a_state_is_of_a_step_from_zero_on(place: Place, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="step -1 is negative"):
        save_states(place, tmp_path, -1)
    save_states(place, tmp_path, 0)
    assert (states(place), newest(place)) == (names(0), 0)


def test_a_corrupt_newest_stays_and_falls_back_one(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_states(place, tmp_path, 50, 100)
    spoil(place, 100)
    assert newest(place) == 50
    (message,) = caplog.messages
    assert message.startswith("skipped the resume state of step 100: ")
    assert states(place) == names(50, 100)
    save_states(place, tmp_path, 60)
    assert newest(place) == 60
    save_states(place, tmp_path, 100)  # the run reaches the lost step again
    assert newest(place) == 100
    assert states(place) == names(60, 100)


def test_states_before_the_newest_whole_ones_are_deleted_and_no_others(
    place: Place, tmp_path: Path
) -> None:
    save_states(place, tmp_path, 20, 30)
    for step in (10, 25, 40):  # whose writers were killed
        place._files.create(f"{state_folder(step)}/attempt-0/weights.bin", b"")
    save_states(place, tmp_path, 35)
    assert states(place) == names(30, 35, 40)
    save_states(place, tmp_path, 60)
    assert states(place) == names(35, 40, 60)
    save_states(place, tmp_path, 50)  # a run that went on from an older one
    assert states(place) == names(35, 40, 50, 60)


def test_a_state_is_kept_where_older_ones_cannot_be_deleted(
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Files, "remove", unreachable)
    save_states(place, tmp_path, 10, 20, 30)
    assert caplog.messages == ["could not delete older resume states: no answer"]
    assert (newest(place), states(place)) == (30, names(10, 20, 30))


def test_a_half_deleted_state_is_not_believed(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker goes before the files do."""
    save_states(place, tmp_path, 10)
    monkeypatch.setattr(Files, "remove_folder", unreachable)
    with pytest.raises(StoreError, match="no answer"):
        place.clear_resume()
    assert newest(place) is None


def test_an_older_state_cannot_pose_as_a_newer_one(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_states(place, tmp_path, 10, 20)
    for name in place._files.sizes(state_folder(10)):
        content = place._files.read(f"{state_folder(10)}/{name}")
        place._files.replace(f"{state_folder(90)}/{name}", content)
    assert newest(place) == 20
    assert caplog.messages == ["skipped a resume state of step 10 at step 90"]


SECRET = secrets.token_bytes(32)
Open = Callable[[bytes], Place]


@pytest.fixture
def open_with(store_settings: dict[str, str | None], tmp_path: Path) -> Open:
    """Opens the store as a worker with a cache of its own that signs with this secret."""

    def opened(secret: bytes) -> Place:
        cache = tmp_path / "cache" / secrets.token_hex(4)
        return Store(cache=cache, key=lambda: secret, **store_settings).place("sft", KEY)

    return opened


@pytest.fixture
def place(open_with: Open) -> Place:
    return open_with(SECRET)


@pytest.fixture
def foreign(open_with: Open) -> Place:
    return open_with(secrets.token_bytes(32))


def test_a_signature_is_an_hmac_for_this_purpose_alone() -> None:
    """Whatever moves it has every run begin from its first step."""
    expected = hmac.new(SECRET, b"dynolab resume state\0manifest", hashlib.sha256).hexdigest()
    signer = Signer(lambda: SECRET)
    assert signer.sign(b"manifest") == expected
    assert signer.signed(b"manifest", expected)
    assert not signer.signed(b"manifesto", expected) and not signer.signed(b"manifest", None)


def test_without_a_key_a_process_believes_its_own_states_alone(
    store_settings: dict[str, str | None], open_with: Open, tmp_path: Path
) -> None:
    assert len(process_key()) == 32 and process_key() == process_key()
    first, second = (
        Store(cache=tmp_path / "cache", **store_settings).place("sft", KEY) for _ in range(2)
    )
    save_states(first, tmp_path, 10)
    assert newest(second) == newest(open_with(process_key())) == 10
    assert newest(open_with(SECRET)) is None


def test_a_state_under_another_key_is_kept_and_passed_over_with_a_warning(
    place: Place, foreign: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_states(place, tmp_path, 10)
    for name in place._files.sizes("stages"):
        content = place._files.read(f"stages/{name}")
        assert SECRET not in content and SECRET.hex().encode() not in content
    assert newest(foreign) is None
    (message,) = caplog.messages
    assert message.endswith(
        f"/{state_folder(10)} counts as not committed: it is not signed with this worker's "
        "key; set the same DYNOLAB_KEY on all workers that share the store"
    )
    assert SECRET.hex() not in message
    assert newest(place) == 10


@ON_DISK
@pytest.mark.parametrize(
    ("marker_change", "manifest_change"),
    [
        ({"signature": secrets.token_hex(32)}, {}),
        ({"signature": None}, {}),
        ({}, {"step": 21}),
        ({}, {"version": 2}),
    ],
    ids=["signature", "no signature", "step", "version"],
)
def test_a_forged_state_is_passed_over(
    marker_change: dict[str, str | None],
    manifest_change: dict[str, int],
    place: Place,
    tmp_path: Path,
) -> None:
    save_states(place, tmp_path, 10, 20)
    marker_path = f"{state_folder(20)}/COMMITTED"
    marker = json.loads(place._files.read(marker_path)) | marker_change
    manifest_path = f"{state_folder(20)}/{marker['attempt']}/manifest.json"
    forged = json.loads(place._files.read(manifest_path)) | manifest_change
    content = json.dumps(forged, indent=2).encode()
    place._files.replace(manifest_path, content)
    marker["manifest_sha256"] = hash_bytes(content)
    place._files.replace(marker_path, json_bytes(marker))
    assert newest(place) == 10


def test_a_result_needs_no_signature(place: Place, foreign: Place, tmp_path: Path) -> None:
    source = write_files(tmp_path / "result", {"summary.json": b"{}"})
    made = place.commit(source, manifest())
    assert foreign.committed() == made
