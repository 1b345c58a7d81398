"""How a step's watched answers are shared out, and in which forwards they are scored."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction, step_forces
from dynolab.forces.step import observe
from dynolab.forces.step.observe import StepForces
from dynolab.training.record import StepRecord
from tests.forces.small_models import neox, recorded
from tests.forces.test_observe import PROBES, Numbers


@pytest.fixture(scope="module")
def record() -> StepRecord:
    return recorded(neox())


def forces(record: StepRecord, **more: Any) -> StepForces:
    policy = PolicyFunction(neox(), torch.float64)
    return step_forces(record, policy, PROBES, Encoder(Numbers(), 32, "drop"), stage="dpo", **more)


def test_the_step_and_its_answers_are_scored_in_forwards_of_the_asked_size(
    record: StepRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    split, by_length = observe.split_step, observe.by_length

    def split_watched(*arguments: Any, batch_tokens: int) -> Any:
        asked.append(batch_tokens)
        return split(*arguments, batch_tokens=batch_tokens)

    def lengths_watched(sequences: Any, batch_tokens: int) -> Any:
        asked.append(batch_tokens)
        return by_length(sequences, batch_tokens)

    monkeypatch.setattr(observe, "split_step", split_watched)
    monkeypatch.setattr(observe, "by_length", lengths_watched)
    forces(record, batch_tokens=12)
    assert asked == [12, 12]


def test_a_rank_watches_its_share_and_has_all_ranks_rows(
    record: StepRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = forces(record).rows
    seen: list[Any] = []

    def share_of(lengths: list[int]) -> slice:
        seen.append(lengths)
        return slice(0, 1)

    def gather(rows: list[Any]) -> list[list[Any]]:
        seen.append(len(rows))
        return [rows, [["another rank's"]]]

    monkeypatch.setattr(observe.distributed, "share_of", share_of)
    monkeypatch.setattr(observe.distributed, "gather", gather)
    monkeypatch.setattr(observe, "_replay", lambda *arguments: arguments[-1])
    shared = forces(record, over_ranks=True).rows
    # Tokens of the probes with the end that closes each; one of the four is this rank's.
    assert seen == [[6, 8, 6, 4], 1]
    assert shared[-1] == "another rank's"
    for own, expected in zip(shared[:-1], whole, strict=False):
        assert (own.pair_id, own.kind) == (expected.pair_id, expected.kind)
        assert own.predicted == pytest.approx(expected.predicted, rel=1e-9)
    assert [row.kind for row in shared[:-1]] == ["chosen", "argmax"]


def test_rows_say_which_step_and_whether_their_pair_was_in_its_batch(record: StepRecord) -> None:
    rows = forces(record).rows
    assert [(row.pair_id, row.kind, row.tokens, row.in_batch) for row in rows] == [
        ("pair-0", "chosen", 3, True),
        ("pair-0", "argmax", 3, True),
        ("pair-0", "rejected", 5, True),
        ("pair-9", "chosen", 4, False),
        ("pair-9", "argmax", 4, False),
        ("pair-9", "irr_test", 2, False),
    ]
    assert {(row.stage, row.step, row.split) for row in rows} == {("dpo", 1, "train")}


def test_without_a_row_that_fits_there_is_nothing_to_watch(record: StepRecord) -> None:
    long = [ProbeRow(**{**PROBES[0].model_dump(), "response": " 8" * 40})]
    policy = PolicyFunction(neox(), torch.float64)
    with pytest.raises(
        ConfigError, match="probes = 0: no probe row is left to watch; give rows that fit"
    ):
        step_forces(record, policy, long, Encoder(Numbers(), 32, "drop"), stage="dpo")
