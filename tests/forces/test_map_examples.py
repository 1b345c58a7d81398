"""What is shown of a force map: blocks with their tokens, sums by pair, means; and its job."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dynolab.data.encode import Encoded
from dynolab.forces import ForceMap, PolicyFunction
from dynolab.forces.map import excerpts
from dynolab.forces.map.analysis import Question
from dynolab.forces.map.breakdown import block_sums, pair_totals
from dynolab.forces.map.excerpts import token_maps
from dynolab.forces.map.force_map import MapFacts
from dynolab.forces.map.weighted import Updating
from dynolab.forces.step.step_forces import force_metrics
from dynolab.objectives import GRPOConfig
from dynolab.results.study import ForceRow
from dynolab.training.step_batch import RecordedCompletion
from dynolab.training.step_record import RecordedGroup
from tests.forces.small_models import Letters, neox, probe

FACTS = MapFacts("float32", "sdpa", "grpo", 0.1, False, "all")


def completion(advantage: float, *tokens: int) -> RecordedCompletion:
    return RecordedCompletion(encoded=Encoded((1, *tokens), 1), advantage=[advantage] * len(tokens))


@pytest.fixture(scope="module")
def question() -> Question:
    """A group of four completions, and one of one, observed by two answers."""
    groups = (
        RecordedGroup(
            id="many",
            completions=(
                completion(-1.0, 11),
                completion(0.5, 12, 13),
                completion(0.4, 14),
                completion(-0.2, 15),
            ),
        ),
        RecordedGroup(id="one", completions=(completion(1.0, 16),)),
    )
    return Question(
        PolicyFunction(neox(), torch.float64),
        Letters(),  # type: ignore[arg-type]
        [
            (probe("many", "chosen"), Encoded((1, 21, 22), 1)),
            (probe("other", "rejected"), Encoded((1, 2, 23), 2)),
        ],
        groups,
        GRPOConfig(),
        0.1,
        0.3,
        step=7,
    )


@pytest.fixture(scope="module")
def found() -> ForceMap:
    updating = (
        Updating("many", "rejected", (11,)),
        Updating("many", "chosen", (12, 13)),
        Updating("many", "chosen", (14,)),
        Updating("many", "rejected", (15,)),
        Updating("one", "chosen", (16,)),
    )
    force = np.arange(18.0).reshape(3, 6)
    return ForceMap(force, ((21, 22), (23,)), updating, FACTS)


def places(maps: list[Any]) -> list[tuple[str, str]]:
    return [(one.observed_id, one.updating_id) for one in maps]


def test_a_groups_block_shows_what_was_pushed_up_before_what_was_pushed_down(
    question: Question, found: ForceMap
) -> None:
    (shown,) = (
        each for each in token_maps(question, found, 9) if places([each]) == [("many", "many")]
    )
    assert (shown.observed_id, shown.observed_kind, shown.updating_id) == (
        *("many", "chosen", "many"),
    )
    assert (shown.stage, shown.step, shown.learning_rate) == ("grpo", 7, 0.3)
    assert shown.observed_tokens == ["t21", "t22"]
    assert shown.chosen_tokens == ["t12", "t13", "t14"]
    assert shown.rejected_tokens == ["t11", "t15"]
    assert shown.force == [[1.0, 2.0, 3.0, 0.0, 4.0], [7.0, 8.0, 9.0, 6.0, 10.0]]


def test_what_pulls_chosen_answers_down_hardest_is_shown_first(
    question: Question, found: ForceMap
) -> None:
    maps = token_maps(question, found, 9)
    order = [(one.observed_kind != "chosen", sum(map(sum, one.force))) for one in maps]
    assert len(order) == 4 and order == sorted(order)
    assert places(token_maps(question, found, 2)) == places(maps)[:2]


def test_blocks_of_too_many_cells_are_left_out(
    question: Question, found: ForceMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two observed tokens by five updating ones are ten cells."""
    monkeypatch.setattr(excerpts, "MOST_CELLS", 10)
    assert ("many", "many") in places(token_maps(question, found, 9))
    monkeypatch.setattr(excerpts, "MOST_CELLS", 9)
    assert places(token_maps(question, found, 9)) == [
        ("many", "one"),
        ("other", "one"),
        ("other", "many"),
    ]


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
        for part, factor in (*factors.items(), ("from_together", 0))
    }
    assert force_metrics(rows[2:3]) == {}
