"""The folder of a force map: what is written when, and what is read back after a kill."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dynolab.errors import ConfigError, CorruptData
from dynolab.forces.map.files import MapFolder

MANIFEST = {"fingerprint": "one", "dtype": "float32", "shape": [3, 4]}
VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)
TOP, BOTTOM = (0, 1, 0, 4), (1, 3, 0, 4)


def fill(folder: MapFolder, *tiles: tuple[int, int, int, int]) -> None:
    for top, bottom, first, last in tiles:
        folder.write((top, bottom, first, last), VALUES[top:bottom, first:last])


def lines(folder: Path) -> list[str]:
    return (folder / "tiles.jsonl").read_text().splitlines()


def test_a_map_begins_as_a_manifest_zeros_of_full_size_and_no_tiles(tmp_path: Path) -> None:
    folder = tmp_path / "some" / "map"
    begun = MapFolder.begin(folder, MANIFEST)
    assert sorted(path.name for path in folder.iterdir()) == [
        "force.bin",
        "manifest.json",
        "tiles.jsonl",
    ]
    assert (folder / "manifest.json").read_text() == json.dumps(MANIFEST, indent=1)
    assert (folder / "force.bin").read_bytes() == bytes(3 * 4 * 4)
    assert lines(folder) == []
    assert begun.matrix.shape == (3, 4) and begun.matrix.dtype == np.float32
    assert begun.done.dtype == bool and not begun.done.any() and not begun.holds(TOP)


def test_a_map_begins_in_an_empty_folder_that_is_there(tmp_path: Path) -> None:
    assert MapFolder.begin(tmp_path, MANIFEST).manifest == MANIFEST


def test_tiles_are_numbers_on_disk_and_a_line_each(tmp_path: Path) -> None:
    begun = MapFolder.begin(tmp_path, MANIFEST)
    fill(begun, TOP)
    assert begun.holds(TOP) and not begun.holds(BOTTOM) and not begun.holds((0, 2, 0, 4))
    fill(begun, BOTTOM)
    assert begun.done.all()
    assert [json.loads(line)["bounds"] for line in lines(tmp_path)] == [list(TOP), list(BOTTOM)]
    assert (tmp_path / "force.bin").read_bytes() == VALUES.tobytes()


def test_a_complete_map_is_opened_to_be_read_alone(tmp_path: Path) -> None:
    fill(MapFolder.begin(tmp_path, MANIFEST), TOP, BOTTOM)
    opened = MapFolder.open(tmp_path)
    assert opened.manifest == MANIFEST
    np.testing.assert_array_equal(opened.matrix, VALUES)
    with pytest.raises(ValueError, match="read-only"):
        opened.matrix[0, 0] = 1.0


def test_a_rank_that_joins_fills_the_same_map(tmp_path: Path) -> None:
    begun = MapFolder.begin(tmp_path, MANIFEST)
    fill(begun, TOP)
    joined = MapFolder.join(tmp_path)
    assert joined.manifest == MANIFEST and joined.holds(TOP) and not joined.holds(BOTTOM)
    fill(joined, BOTTOM)
    np.testing.assert_array_equal(begun.matrix, VALUES)
    assert MapFolder.open(tmp_path).done.all()


def test_what_is_complete_stays_to_the_bit(tmp_path: Path) -> None:
    begun = MapFolder.begin(tmp_path, MANIFEST)
    fill(begun, TOP)
    begun.write((0, 3, 0, 4), VALUES + 0.5)
    np.testing.assert_array_equal(begun.matrix, np.vstack([VALUES[:1], VALUES[1:] + 0.5]))
    assert MapFolder.open(tmp_path).done.all()


def test_an_incomplete_map_is_refused_with_its_share_and_the_remedy(tmp_path: Path) -> None:
    fill(MapFolder.begin(tmp_path, MANIFEST), BOTTOM)
    with pytest.raises(
        CorruptData,
        match=r"67% of the force map is complete; the rest was interrupted or does not match its "
        "hash: call force_map again with this folder",
    ):
        MapFolder.open(tmp_path)


def test_a_torn_line_hides_no_tile_that_follows_it(tmp_path: Path) -> None:
    fill(MapFolder.begin(tmp_path, MANIFEST), TOP)
    with (tmp_path / "tiles.jsonl").open("a") as file:
        file.write('{"bounds": [1, 3')
    fill(MapFolder.begin(tmp_path, MANIFEST), BOTTOM)
    assert lines(tmp_path)[1] == '{"bounds": [1, 3'
    assert len(lines(tmp_path)) == 3
    assert MapFolder.open(tmp_path).done.all()


@pytest.mark.parametrize(
    "line",
    ["null", "[1]", "{}", '{"bounds": [1, 2]}', '{"bounds": 3}', '{"bounds": [0, 1, 0, 4]}'],
)
def test_a_line_that_names_no_tile_is_passed_over(tmp_path: Path, line: str) -> None:
    (tmp_path / "tiles.jsonl").write_text(line + "\n")
    begun = MapFolder.begin(tmp_path, MANIFEST)
    (tmp_path / "tiles.jsonl").write_text(line + "\n")
    fill(begun, TOP, BOTTOM)
    assert MapFolder.open(tmp_path).done.all()


def test_whole_lines_are_left_as_they_are_when_a_map_continues(tmp_path: Path) -> None:
    MapFolder.begin(tmp_path, MANIFEST)
    MapFolder.begin(tmp_path, MANIFEST)
    assert (tmp_path / "tiles.jsonl").read_bytes() == b""
    fill(MapFolder.begin(tmp_path, MANIFEST), TOP)
    before = (tmp_path / "tiles.jsonl").read_bytes()
    assert before.endswith(b"}\n")
    assert MapFolder.begin(tmp_path, MANIFEST).holds(TOP)
    assert (tmp_path / "tiles.jsonl").read_bytes() == before


def test_a_map_without_its_record_of_tiles_is_begun_anew(tmp_path: Path) -> None:
    fill(MapFolder.begin(tmp_path, MANIFEST), TOP, BOTTOM)
    (tmp_path / "tiles.jsonl").unlink()
    assert not MapFolder.join(tmp_path).done.any()


def test_another_map_s_folder_is_refused_by_its_name(tmp_path: Path) -> None:
    MapFolder.begin(tmp_path, MANIFEST)
    with pytest.raises(
        ConfigError,
        match="holds a force map of other inputs; give another folder or remove this one",
    ):
        MapFolder.begin(tmp_path, {**MANIFEST, "fingerprint": "two"})
    with pytest.raises(ConfigError, match="holds no force map; give one that does"):
        MapFolder.open(tmp_path / "nowhere")


@pytest.mark.parametrize("missing", ["fingerprint", "dtype", "shape"])
def test_a_manifest_that_says_too_little_is_refused(tmp_path: Path, missing: str) -> None:
    MapFolder.begin(tmp_path, MANIFEST)
    rest = {name: value for name, value in MANIFEST.items() if name != missing}
    for text in (json.dumps(rest), "{torn", "3"):
        (tmp_path / "manifest.json").write_text(text)
        for ask in (MapFolder.open, MapFolder.join):
            with pytest.raises(CorruptData, match="is no force map's manifest; remove the folder"):
                ask(tmp_path)
