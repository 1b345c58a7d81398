"""A store that is read whole: each damage is found, named and removed alone."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynolab.errors import ConfigError, StoreError
from dynolab.store import Manifest, Place, Store, verify as verify_module
from dynolab.store.filesystem import Files
from dynolab.store.verify import Checked, chosen_places, readers_of, remove, verify
from tests.store.results import KEY, contents, manifest, save_states, write_files

OTHER = "5d" * 32


class Kept:
    """A store with a result of several files, one that reads it, and resume states."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "store"
        self.store = Store(f"file://{self.folder}", cache=folder / "cache", key=lambda: b"k" * 32)
        self.place: Place = self.store.place("sft", KEY)
        files = {"model/weights.bin": b"w" * 1000, "summary.json": b"{}", "rows.jsonl": b"{}\n"}
        made = self.place.commit(write_files(folder / "source", files), manifest())
        self.digest = made.manifest.digest
        reader = Manifest(stage="probe", key=OTHER, version=1, parents={"model": self.digest})
        self.store.place("probe", OTHER).commit(write_files(folder / "two", {"a": b"a"}), reader)
        save_states(self.place, folder, 3, 6)

    def checked(self, *references: str) -> list[Checked]:
        return list(verify(self.store, chosen_places(self.store, references)))

    def damaged(self) -> dict[str, str]:
        return {name: why for one in self.checked() for name, why in one.damaged.items()}


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_what_is_whole_is_counted(kept: Kept) -> None:
    checked = kept.checked()
    assert kept.damaged() == {}
    assert sum(one.count for one in checked) == 4
    assert sum(one.size for one in checked) == (1000 + 2 + 3) + 1 + 2 * 6
    assert [one.place.stage for one in kept.checked("sft/4c4c")] == ["sft"]
    assert len(kept.checked("sft", "probe/5d")) == 2
    with pytest.raises(ConfigError, match=r"RESULT = 'sft/77': is not in the store"):
        kept.checked("sft/77")


def test_a_flipped_bit_is_found_wherever_it_is(kept: Kept) -> None:
    chance = random.Random(1)
    for name, content in contents(kept.folder).items():
        for _ in range(3):
            at = chance.randrange(len(content))
            flipped = bytearray(content)
            flipped[at] ^= 1 << chance.randrange(8)
            (kept.folder / name).write_bytes(flipped)
            (found,) = kept.damaged()
            folder, _, attempt = name.partition("/attempt-")
            assert found == (folder if attempt else name.removesuffix("/COMMITTED")), (name, at)
        (kept.folder / name).write_bytes(content)
    assert kept.damaged() == {}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda folder: (folder / "summary.json").unlink(), "missing or have other sizes"),
        (lambda folder: (folder / "more.txt").write_text("x"), "more.txt was not committed"),
        (lambda folder: (folder / "rows.jsonl").write_text("[]\n"), "rows.jsonl has other bytes"),
        (lambda folder: (folder / "manifest.json").unlink(), "cannot be read"),
    ],
)
def test_what_is_wrong_is_named_and_removed_alone(
    change: Callable[[Path], object], why: str, kept: Kept
) -> None:
    (attempt,) = kept.folder.glob(f"stages/sft/{KEY}/attempt-*")
    gone = (f"{kept.place.path}/attempt-", f"{kept.place.path}/COMMITTED")
    others = {
        name: content
        for name, content in contents(kept.folder).items()
        if not name.startswith(gone)
    }
    change(attempt)
    (checked,) = [one for one in kept.checked() if one.damaged]
    assert why in checked.damaged[kept.place.path]
    assert remove(kept.store, checked) == [kept.place.path]
    assert kept.damaged() == {} and kept.place.committed() is None
    assert contents(kept.folder) == others


def test_what_reads_a_damaged_result_is_named(kept: Kept) -> None:
    readers = readers_of(kept.checked(), {kept.digest})
    assert [(place.stage, place.key) for place in readers] == [("probe", OTHER)]


def test_a_writers_attempt_stays(kept: Kept) -> None:
    (kept.folder / kept.place.path / "COMMITTED").write_text("{}")
    with kept.place.claim() as claim:
        assert claim.try_acquire()
        (checked,) = [one for one in kept.checked() if one.damaged]
        remove(kept.store, checked)
        assert len(list((kept.folder / kept.place.path).glob("attempt-*"))) == 1


def test_states_that_another_key_signed_are_named_and_stay(kept: Kept, tmp_path: Path) -> None:
    elsewhere = Store(kept.store.files.url, cache=tmp_path / "cache", key=lambda: b"o" * 32)
    (checked,) = [one for one in verify(elsewhere, chosen_places(elsewhere, [])) if one.damaged]
    assert len(checked.damaged) == 2
    assert all("not signed with this worker's key" in why for why in checked.damaged.values())
    assert remove(elsewhere, checked) == []
    assert kept.damaged() == {}


def test_a_store_that_is_away_is_not_damaged_and_a_failing_disk_is(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: Path) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(verify_module, "hash_file", failing)
        found = kept.damaged()
    assert len(found) == 4
    assert all("cannot be read (OSError" in why for why in found.values())

    def away(self: Files, path: str, target: Path) -> None:
        raise StoreError("no answer")

    monkeypatch.setattr(Files, "local", lambda *_: None)
    assert kept.damaged() == {}, "read by downloads"
    monkeypatch.setattr(Files, "download", away)
    with pytest.raises(StoreError, match="no answer"):
        kept.checked()
