"""The newest intact resume state counts, and only two are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynolab.store import Manifest, Place, Store

KEY = "12" * 32


@pytest.fixture
def place(store: Store) -> Place:
    return store.place("dpo", KEY)


def save(place: Place, step: int, tmp_path: Path) -> None:
    source = tmp_path / f"state-{step}"
    (source / "rank0").mkdir(parents=True, exist_ok=True)
    (source / "rank0/engine.bin").write_bytes(b"%06d" % step)
    manifest = Manifest(stage="dpo", key=KEY, version=1, extra={"cursor": step * 4})
    place.commit_resume(step, source, manifest)


def states(store: Store, place: Place) -> list[str]:
    return sorted(store.files.children(f"{place.path}/resume"))


def spoil(store: Store, place: Place, step: int) -> None:
    folder = f"{place.path}/resume/step-{step:08d}"
    (name,) = [n for n in store.files.sizes(folder) if n.endswith("engine.bin")]
    store.files.replace(f"{folder}/{name}", b"??????")


def newest(place: Place) -> int | None:
    found = place.newest_resume()
    if found is None:
        return None
    step, folder = found
    assert (folder / "rank0/engine.bin").read_bytes() == b"%06d" % step
    told = Manifest.model_validate_json((folder / "manifest.json").read_bytes())
    assert (told.step, told.extra) == (step, {"cursor": step * 4})
    return step


def test_the_newest_two_are_kept(store: Store, place: Place, tmp_path: Path) -> None:
    assert newest(place) is None
    for step in (50, 100, 150):
        save(place, step, tmp_path)
    assert states(store, place) == ["step-00000100", "step-00000150"]
    assert newest(place) == 150
    assert place.committed() is None  # a resume state is no result


def test_as_many_are_kept_as_the_store_is_told_to(
    store_settings: dict[str, str | None], tmp_path: Path
) -> None:
    store = Store(cache=tmp_path / "cache", keep=3, **store_settings)
    place = store.place("dpo", KEY)
    for step in (50, 100, 150, 200):
        save(place, step, tmp_path)
    assert states(store, place) == ["step-00000100", "step-00000150", "step-00000200"]


def test_a_corrupt_newest_falls_back_one(store: Store, place: Place, tmp_path: Path) -> None:
    save(place, 50, tmp_path)
    save(place, 100, tmp_path)
    spoil(store, place, 100)
    assert newest(place) == 50
    save(place, 60, tmp_path)
    assert newest(place) == 60
    save(place, 100, tmp_path)  # the run reaches the lost step again
    assert newest(place) == 100
    assert states(store, place) == ["step-00000060", "step-00000100"]


def test_all_corrupt_means_from_the_start(store: Store, place: Place, tmp_path: Path) -> None:
    for step in (50, 100):
        save(place, step, tmp_path)
        spoil(store, place, step)
    assert newest(place) is None


def test_an_uncommitted_state_is_passed_over(store: Store, place: Place, tmp_path: Path) -> None:
    save(place, 50, tmp_path)
    save(place, 100, tmp_path)
    store.files.remove(f"{place.path}/resume/step-00000100/COMMITTED")
    assert newest(place) == 50


def test_foreign_names_are_left_alone(store: Store, place: Place, tmp_path: Path) -> None:
    save(place, 50, tmp_path)
    store.files.create(f"{place.path}/resume/step-99999999999999999999x/COMMITTED", b"{}")
    store.files.create(f"{place.path}/resume/notes/COMMITTED", b"{}")
    assert newest(place) == 50


def test_clear_forgets_everything(store: Store, place: Place, tmp_path: Path) -> None:
    save(place, 50, tmp_path)
    save(place, 100, tmp_path)
    place.clear_resume()
    assert newest(place) is None
    assert states(store, place) == []
