"""The newest intact resume state counts, and only two are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynolab.errors import StoreError
from dynolab.store import Place, Store
from dynolab.store.filesystem import Files
from tests.store.results import (
    KEY,
    newest,
    save_states,
    state_folder,
    states,
)


def names(*steps: int) -> list[str]:
    return [f"step-{step:08d}" for step in steps]


def spoil(place: Place, step: int) -> None:
    folder = state_folder(step)
    (name,) = [name for name in place._files.sizes(folder) if name.endswith("engine.bin")]
    place._files.replace(f"{folder}/{name}", b"??????")


def unreachable(self: Files, path: str) -> None:
    raise StoreError("no answer")


def test_the_newest_two_are_kept(place: Place, tmp_path: Path) -> None:
    assert newest(place) is None
    save_states(place, tmp_path, 50, 100, 150)
    assert states(place) == names(100, 150)
    assert newest(place) == 150
    assert place.committed() is None  # a resume state is no result


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


def test_states_are_ordered_by_number(place: Place, tmp_path: Path) -> None:
    save_states(place, tmp_path, 99_999_999, 100_000_000)
    assert newest(place) == 100_000_000


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


def test_an_uncommitted_state_is_passed_over(place: Place, tmp_path: Path) -> None:
    save_states(place, tmp_path, 50, 100)
    place._files.remove(f"{state_folder(100)}/COMMITTED")
    assert newest(place) == 50


def test_clear_forgets_everything(place: Place, tmp_path: Path) -> None:
    save_states(place, tmp_path, 50, 100)
    place.clear_resume()
    assert (newest(place), states(place)) == (None, [])


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
