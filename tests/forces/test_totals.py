"""Sums of a force map by pair, and the means that MLflow shows."""

from __future__ import annotations

import numpy as np
import pytest

from dynolab.forces import ForceMap
from dynolab.forces.map.force_map import MapFacts
from dynolab.forces.map.problem import Updating
from dynolab.forces.map.totals import block_sums, pair_totals
from dynolab.forces.step.metrics import force_metrics
from dynolab.results.study import ForceRow

FACTS = MapFacts("columns", "float32", "sdpa", "grpo", 0.1, False, "all")


def test_blocks_are_summed_where_the_offsets_cut() -> None:
    force = np.arange(1.0, 13.0).reshape(3, 4)
    sums = block_sums(force, [0, 1, 3], [0, 3, 4])
    # 1 + 2 + 3 and 4; 5 + 6 + 7 + 9 + 10 + 11 and 8 + 12.
    assert sums.tolist() == [[6.0, 4.0], [48.0, 20.0]]


def test_sums_of_a_float32_map_are_taken_in_float64() -> None:
    column = np.array([[2.0**24], [1.0], [1.0], [-(2.0**24)]], dtype=np.float32)
    for force, rows, columns in ((column, [0, 4], [0, 1]), (column.T, [0, 1], [0, 4])):
        sums = block_sums(force, rows, columns)
        assert sums.dtype == np.float64 and sums.tolist() == [[2.0]]


def test_every_response_counts_for_its_example_and_side() -> None:
    """A group has several completions a side, in any order; examples keep the map's order."""
    updating = (
        Updating("b", "rejected", (5,)),
        Updating("b", "chosen", (6, 7)),
        Updating("b", "chosen", (8,)),
        Updating("a", "chosen", (9,)),
        Updating("b", "rejected", (3,)),
    )
    force = np.array([[1.0, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60], [0, 0, 0, 0, 0, 1]])
    totals = pair_totals(ForceMap(force, ((1,), (2, 3)), updating, FACTS))
    assert totals.pairs == ("b", "a")
    assert totals.from_chosen.tolist() == [[2 + 3 + 4, 5], [20 + 30 + 40, 50]]
    assert totals.from_rejected.tolist() == [[1 + 6, 0], [10 + 60 + 1, 0]]


def row(split: str, kind: str, value: float) -> ForceRow:
    return ForceRow(
        stage="dpo",
        step=1,
        pair_id="p",
        split=split,
        kind=kind,
        tokens=2,
        in_batch=False,
        measured=value,
        predicted=2 * value,
        from_chosen=3 * value,
        from_rejected=4 * value,
        from_history=5 * value,
        residual=6 * value,
    )


def test_metrics_are_means_over_the_training_answers_of_a_kind() -> None:
    rows = [
        row("train", "chosen", 1.0),
        row("train", "rejected", 10.0),
        row("heldout", "chosen", 100.0),
        row("train", "chosen", 2.0),
    ]
    parts = ("measured", "predicted", "from_chosen", "from_rejected", "from_history", "residual")
    factors = dict(zip(parts, range(1, 7), strict=True))
    assert force_metrics(rows) == {
        f"force/{kind}/{part}": pytest.approx(mean * factor)
        for kind, mean in (("chosen", 1.5), ("rejected", 10.0))
        for part, factor in factors.items()
    }
    assert force_metrics(rows[2:3]) == {}
