"""Batches on their way to a device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch, TopTokens, collate
from dynolab.data.encode import Encoded

SEQUENCES = [Encoded((5, 6, 7, 8), 2), Encoded((5, 6, 9), 2), Encoded((3, 4, 4, 4, 2), 1)]


def batch() -> TokenBatch:
    plain = collate(SEQUENCES, 0)
    tokens = len(plain.token)
    return replace(
        plain,
        reference=torch.linspace(-1, 0, tokens),
        wins=torch.tensor([0.5, 0.25, 1.0], dtype=torch.float64),
        top=TopTokens(torch.ones(tokens, 2).long(), torch.zeros(tokens, 2), torch.zeros(tokens)),
    )


def test_every_tensor_moves_and_all_else_stays() -> None:
    own = batch()
    moved = own.to("meta")
    assert moved.token.device.type == moved.top.logp.device.type == "meta"
    assert (moved.wins.dtype, moved.wins.shape) == (torch.float64, (3,))
    assert (moved.totals, moved.ids, moved.old) == (own.totals, own.ids, None)
    assert own.token.device.type == "cpu"


def test_a_batch_that_is_there_keeps_its_tensors() -> None:
    own = batch()
    moved = own.to("cpu")
    assert moved.token is own.token
    assert moved.top.entropy is own.top.entropy


@pytest.mark.parametrize(
    "sides",
    [
        [CHOSEN, REJECTED, CHOSEN, REJECTED],
        [REJECTED, REJECTED, CHOSEN, CHOSEN],
        [REJECTED, CHOSEN, CHOSEN, REJECTED],
    ],
    ids=str,
)
def test_values_are_split_by_side_in_the_order_of_the_sequences(sides: list[int]) -> None:
    own = collate([*SEQUENCES, SEQUENCES[0]], 0, side=sides)
    values = torch.arange(4.0)
    chosen, rejected = own.by_side(values)
    assert torch.equal(chosen, values[own.side == CHOSEN])
    assert torch.equal(rejected, values[own.side == REJECTED])
