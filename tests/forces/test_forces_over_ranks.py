"""Observations shared out over real ranks give one process' numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dynolab import distributed
from dynolab.forces import ForceMap
from tasks.runtime.launch.launcher import launch_ranks
from tests.forces.rank_forces import MAPS, make_map

ROOT = Path(__file__).parents[2]

# Matrix products of other sizes round otherwise: equal to float32's rounding, not to the bit.
BOUND = 1e-6


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What three ranks made, among which some observations do not share evenly."""
    folder = tmp_path_factory.mktemp("ranks")
    launch_ranks(
        "tests.forces.rank_forces",
        folder / "job.json",
        ranks=3,
        logs=folder / "logs",
        environment={"PYTHONPATH": str(ROOT)},
        while_running=lambda: None,
    )
    return folder


@pytest.mark.ranks
def test_maps_of_all_ranks_are_those_of_one_process(shared: Path) -> None:
    for name in MAPS:
        alone = make_map(name)
        together, written = np.load(shared / f"{name}.npy"), ForceMap.open(shared / name)
        size = np.linalg.norm(alone.force)
        assert np.linalg.norm(together - alone.force) < BOUND * size
        np.testing.assert_array_equal(written.force, together)
        assert written.facts == alone.facts
        assert (written.observed, written.updating) == (alone.observed, alone.updating)
    refused = json.loads((shared / "refused.json").read_text())
    assert all("other inputs" in said for said in refused)


@pytest.mark.parametrize("sizes", [[5, 5, 5, 5], [100, 1, 1, 1], [1, 1, 1, 100], [7], []])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_shares_are_contiguous_complete_and_no_worse_than_an_item_off(sizes, ranks, monkeypatch):
    monkeypatch.setattr(distributed, "world_size", lambda: ranks)
    shared = []
    for number in range(ranks):
        monkeypatch.setattr(distributed, "rank", lambda number=number: number)
        share = sizes[distributed.share_of(sizes)]
        assert sum(share) <= sum(sizes) / ranks + max(sizes, default=0)
        shared += share
    assert shared == sizes
