"""The position of an answer that was squeezed most, and its tokens' probabilities."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.data.encode import Encoded
from dynolab.data.rows import ProbeRow
from dynolab.report.study.position import position_figure
from dynolab.squeezing.position import SqueezedPosition

BEFORE = torch.tensor([[0.5, 0.3, 0.1, 0.1], [0.6, 0.2, 0.1, 0.1]])
AFTER = torch.tensor([[0.6, 0.25, 0.1, 0.05], [0.9, 0.05, 0.03, 0.02]])
CPU = torch.device("cpu")


def policy(probabilities: Tensor) -> Callable[[TokenBatch], Tensor]:
    """A policy with these probabilities at every answer's two positions."""
    return lambda batch: probabilities[: len(batch.token)].log()


def row(pair: str) -> ProbeRow:
    return ProbeRow(
        pair_id=pair,
        split="train",
        kind="chosen",
        prompt="?",
        response="x",
        made_by="data",
    )


def encoded(*tokens: int) -> Encoded:
    return Encoded(ids=(3, *tokens), prompt_length=1)


def found(chosen: Encoded, rejected: Encoded) -> SqueezedPosition | None:
    return SqueezedPosition.find(
        policy(BEFORE),
        policy(AFTER),
        [(row("a"), chosen)],
        {"a": rejected},
        lambda tokens: "".join("wxyz"[token] for token in tokens),
        CPU,
    )


def test_the_place_is_where_the_likeliest_token_gained_most_over_the_answers_own() -> None:
    position = found(encoded(1, 1), encoded(1, 2))
    assert position is not None
    # At the first place y* gains log(0.6/0.5) − log(0.25/0.3), at the second more.
    assert (position.place, position.after) == (1, "x")
    assert position.roles == {1: "chosen", 2: "rejected", 0: "argmax", 3: "other"}
    rows = position.rows(policy(AFTER), 7)
    assert [row.token for row in rows] == ["x", "y", "w", "z"]
    assert [row.probability for row in rows] == pytest.approx([0.05, 0.03, 0.9, 0.02])
    figure = position_figure([*position.rows(policy(BEFORE), 0), *rows], {"a": "why?"}, "DPO")
    assert figure is not None
    before, after = figure.plot.data
    assert list(before.y) == pytest.approx([0.2, 0.1, 0.6, 0.1, 0.0], abs=1e-6)
    assert list(after.y) == pytest.approx([0.05, 0.03, 0.9, 0.02, 0.0], abs=1e-6)
    assert "why?" in figure.message


def test_a_rejected_token_counts_only_where_both_answers_are_the_same_up_to_there() -> None:
    position = found(encoded(1, 1), encoded(2, 2))
    assert position is not None
    assert "rejected" not in position.roles.values()


def test_answers_of_the_likeliest_tokens_have_no_such_place() -> None:
    assert found(encoded(0, 0), encoded(1, 1)) is None
    assert position_figure([], {}, "DPO") is None
