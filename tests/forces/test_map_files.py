"""A force map on disk: what is written when, and what is read back after a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError, CorruptData, DynolabError
from dynolab.forces import ForceMap, FrozenUpdate
from dynolab.forces.map.files import MapFolder
from dynolab.objectives import DPO, DPOConfig
from tests.forces.families import case
from tests.forces.small_models import encoded

MEMORY = 2**19
ROOT = Path(__file__).parents[2]


def make(
    folder: Path | None, *, update: float = 0.1, memory: int = MEMORY, by_block: bool = False
) -> ForceMap:
    return case("llama_tied", torch.float32).force_map(
        observed=[encoded(n, 4, 5) for n in range(4)],
        update=update,
        memory_bytes=memory,
        folder=folder,
        by_block=by_block,
    )


def tiles(folder: Path) -> list[str]:
    return (folder / "tiles.jsonl").read_text().splitlines()


def test_a_map_on_disk_is_the_map_in_memory(tmp_path):
    written, held = make(tmp_path / "map"), make(None)
    read = ForceMap.open(tmp_path / "map")
    assert isinstance(read.force, np.memmap)
    assert len(tiles(tmp_path / "map")) > 3
    for stored in (written, read):
        np.testing.assert_array_equal(stored.force, held.force)
        described = (stored.observed, stored.updating, stored.facts)
        assert described == (held.observed, held.updating, held.facts)
    assert read.block(1, 2).shape == (5, len(read.updating[2].tokens))
    columns = slice(*held.updating_offsets[2:4])
    np.testing.assert_array_equal(read.block(1, 2), held.force[5:10, columns])


def test_a_folder_is_of_one_question_in_every_part(tmp_path: Path) -> None:
    here = case("llama_tied", torch.float32, count=1)
    prompt, weights = encoded(0), dict(here.policy.weights)
    (example,) = here.examples
    ones = {name: torch.ones_like(weight) for name, weight in weights.items()}
    question = {"observed": [prompt], "update": FrozenUpdate(ones), "folder": tmp_path}
    moved = {name: 1.01 * weight for name, weight in weights.items()}
    score, *scores = example.chosen_reference
    rescored = example.model_copy(update={"chosen_reference": [score + 1, *scores]})
    others = {
        "the weights": {"at": moved},
        "the metric": {"update": FrozenUpdate({name: 2 * one for name, one in ones.items()})},
        "the prompt": {"observed": [Encoded((4, *prompt.ids[1:]), prompt.prompt_length)]},
        "a reference": {"examples": [rescored]},
        "the objective": {"objective": DPO(DPOConfig(beta=0.2))},
    }
    assert prompt.ids[0] != 4
    here.force_map(**question)
    here.force_map(at=weights, **question)
    for other in others.values():
        with pytest.raises(ConfigError, match="other inputs"):
            here.force_map(**{**question, **other})


def test_a_map_that_is_not_finite_is_refused_with_the_place() -> None:
    with pytest.raises(
        DynolabError, match=r"^force map: rows and columns \(0, 20, 0, \d+\) are not"
    ):
        make(None, update=1e300, memory=2**30)


KILLED = """
import os, signal, sys
from pathlib import Path
from dynolab.forces.map.files import MapFolder
from tests.forces.test_map_files import make
write, done = MapFolder.write, []

def write_then_die(self, bounds, values):
    if len(done) == 2:
        self.matrix[bounds[0] : bounds[1], bounds[2] : bounds[3]] = 7.0
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, bounds, values)
    done.append(bounds)

MapFolder.write = write_then_die
make(Path(sys.argv[1]))
"""


def test_a_killed_map_is_never_read_as_whole_and_is_continued(tmp_path, monkeypatch):
    folder = tmp_path / "map"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder)], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(tiles(folder)) == 2
    with (folder / "tiles.jsonl").open("a") as file:
        file.write('{"bounds": [0, 5')  # a line that the kill cut through
    with pytest.raises(CorruptData, match="call force_map again"):
        ForceMap.open(folder)

    written: list[tuple[int, ...]] = []
    write = MapFolder.write

    def watched(self, bounds, values):  # type: ignore[no-untyped-def]
        written.append(bounds)
        write(self, bounds, values)

    monkeypatch.setattr(MapFolder, "write", watched)
    whole = make(None)
    np.testing.assert_array_equal(make(folder).force, whole.force)
    area = sum((b - a) * (d - c) for a, b, c, d in written)
    assert 0 < area < whole.force.size
    again = len(written)
    make(folder)
    assert len(written) == again


def test_a_map_is_continued_in_tiles_of_another_size(tmp_path):
    """Tiles that overlap complete ones leave those as they are, so that all hashes hold."""
    folder = tmp_path / "map"
    whole = make(folder).force.copy()
    kept = tiles(folder)
    assert len(kept) > 3
    for number in range(len(kept)):
        (folder / "tiles.jsonl").write_text(kept[number] + "\n")
        continued = make(folder, memory=3 * MEMORY // 4).force
        assert np.linalg.norm(continued - whole) < 1e-6 * np.linalg.norm(whole)


def test_numbers_that_do_not_match_their_hash_are_missing(tmp_path):
    folder = tmp_path / "map"
    whole = make(folder).force.copy()
    with (folder / "force.bin").open("r+b") as file:
        file.seek(8)
        file.write(b"\xff\xff")
    with pytest.raises(CorruptData, match="does not match its hash"):
        ForceMap.open(folder)
    np.testing.assert_array_equal(make(folder).force, whole)


MANIFEST = {"fingerprint": "one", "dtype": "float32", "shape": [3, 4]}
VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)
TOP, BOTTOM = (0, 1, 0, 4), (1, 3, 0, 4)


def fill(folder: MapFolder, *tiles: tuple[int, int, int, int]) -> None:
    for top, bottom, first, last in tiles:
        folder.write((top, bottom, first, last), VALUES[top:bottom, first:last])


def test_a_rank_that_joins_fills_the_same_map(tmp_path: Path) -> None:
    begun = MapFolder.begin(tmp_path, MANIFEST)
    fill(begun, TOP)
    joined = MapFolder.join(tmp_path)
    assert joined.manifest == MANIFEST and joined.holds(TOP) and not joined.holds(BOTTOM)
    fill(joined, BOTTOM)
    np.testing.assert_array_equal(begun.matrix, VALUES)
    assert MapFolder.open(tmp_path).done.all()


def test_an_incomplete_map_is_refused_with_its_share_and_the_remedy(tmp_path: Path) -> None:
    fill(MapFolder.begin(tmp_path, MANIFEST), BOTTOM)
    with pytest.raises(
        CorruptData,
        match=r"67% of the force map is complete; the rest was interrupted or does not match its "
        "hash: call force_map again with this folder",
    ):
        MapFolder.open(tmp_path)


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


def test_another_map_s_folder_is_refused_by_its_name(tmp_path: Path) -> None:
    MapFolder.begin(tmp_path, MANIFEST)
    with pytest.raises(
        ConfigError,
        match="contains a force map of other inputs; give another folder or remove this one",
    ):
        MapFolder.begin(tmp_path, {**MANIFEST, "fingerprint": "two"})
    with pytest.raises(ConfigError, match="contains no force map; give a folder with one"):
        MapFolder.open(tmp_path / "nowhere")


@pytest.mark.parametrize("missing", ["fingerprint", "dtype", "shape"])
def test_a_manifest_that_says_too_little_is_refused(tmp_path: Path, missing: str) -> None:
    MapFolder.begin(tmp_path, MANIFEST)
    rest = {name: value for name, value in MANIFEST.items() if name != missing}
    for text in (json.dumps(rest), "{torn", "3"):
        (tmp_path / "manifest.json").write_text(text)
        for ask in (MapFolder.open, MapFolder.join):
            with pytest.raises(
                CorruptData, match="is not a force map's manifest; remove the folder"
            ):
                ask(tmp_path)


def test_blocks_parts_are_kept_beside_the_map_and_count_as_its_tiles(tmp_path: Path) -> None:
    held = make(None, update=1.0, by_block=True)
    written = make(tmp_path, update=1.0, by_block=True)
    assert held.parts is not None and written.parts is not None
    assert list(held.parts) == list(written.parts) and {"tied", "mlp"} <= set(held.parts)
    for name, part in held.parts.items():
        np.testing.assert_array_equal(written.parts[name], part)
    np.testing.assert_allclose(sum(held.parts.values()), held.force, rtol=1e-4, atol=1e-7)
    assert len(tiles(tmp_path)) > 3
    with pytest.raises(ConfigError, match="other inputs"):  # a map without blocks is another one
        make(tmp_path, update=1.0)
    file = tmp_path / "blocks.bin"
    content = bytearray(file.read_bytes())
    content[:4] = b"\1\2\3\4"
    file.write_bytes(content)
    with pytest.raises(CorruptData, match="call force_map again"):
        ForceMap.open(tmp_path)
    again = make(tmp_path, update=1.0, by_block=True)
    assert again.parts is not None
    for name, part in held.parts.items():
        np.testing.assert_array_equal(again.parts[name], part)
