"""Batches: rows with shared prompts, prompts that run once, and what moves to a device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch, TopTokens, collate
from dynolab.data.encode import Encoded
from dynolab.data.packing import (
    PADDING,
    PackedBatch,
    collate_rows,
    packed_length,
    plan_rows,
    rows_by_length,
    sequences_of as sequences_in,
    share_prompts,
)

A, B = (5, 6, 7), (8,)


def answer(prompt: tuple[int, ...], *response: int) -> Encoded:
    return Encoded(prompt + response, len(prompt))


SEQUENCES = [
    answer(A, 10, 11),
    answer(B, 12, 13, 14),
    answer(A, 15),
    answer(B, 16, 2),
    answer(A, 17, 18, 2),
]


def test_a_row_is_a_prompt_and_its_responses_without_their_last_tokens() -> None:
    batch = share_prompts(collate(SEQUENCES, 0), [[0, 2, 4], [1, 3]])
    assert isinstance(batch, PackedBatch)
    assert batch.input_ids.tolist() == [[5, 6, 7, 10, 17, 18], [8, 12, 13, 16, 0, 0]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 3, 4], [0, 1, 2, 1, 0, 0]]
    assert batch.segment.tolist() == [[0, 0, 0, 1, 3, 3], [0, 1, 1, 2, PADDING, PADDING]]
    assert batch.row.tolist() == [0, 1, 0, 1, 0]


def test_what_is_listed_per_token_and_sequence_keeps_its_order() -> None:
    values = torch.arange(11.0)
    plain = collate(SEQUENCES, 0, example=[0, 1, 0, 1, 2], side=[0, 0, 1, 1, 0], ids="abc")
    plain = replace(plain, reference=values)
    batch = share_prompts(plain, [[0, 2, 4], [1, 3]])
    for name in ("sequence", "token", "example", "side", "reference"):
        assert getattr(batch, name).tolist() == getattr(plain, name).tolist()
    assert (batch.ids, batch.totals) == (plain.ids, plain.totals)
    assert batch.sequence_sum(values).tolist() == plain.sequence_sum(values).tolist()


@pytest.mark.parametrize("window", [None, 1, 2, 3])
def test_a_token_sees_what_it_would_see_alone(window: int | None) -> None:
    batch = share_prompts(collate(SEQUENCES, 0), [[0, 2, 4], [1, 3]])
    assert isinstance(batch, PackedBatch)
    visible = batch.visible(window)[:, 0]
    for row, (segments, places) in enumerate(
        zip(batch.segment.tolist(), batch.position_ids.tolist(), strict=True)
    ):
        for query, own in enumerate(segments):
            if own == PADDING:
                assert visible[row, query, query]  # a softmax over nothing is no number
                continue
            seen = [
                key
                for key, other in enumerate(segments)
                if other in (0, own)
                and places[key] <= places[query]
                and (window is None or places[query] - places[key] < window)
            ]
            assert visible[row, query].nonzero().flatten().tolist() == seen


def test_sequences_of_different_prompts_never_share_a_row() -> None:
    assert plan_rows(SEQUENCES, width=512) == [[0, 2, 4], [1, 3]]


def test_a_batch_without_shared_prompts_stays_as_it_is() -> None:
    batch = collate(SEQUENCES[:2], 0)
    assert share_prompts(batch, plan_rows(SEQUENCES[:2], width=512)) is batch


def test_a_batch_of_rows_lists_its_sequences_row_by_row() -> None:
    batch, members = collate_rows(SEQUENCES, [[1, 3], [2, 4]], 0)
    assert isinstance(batch, PackedBatch)
    assert members == [1, 3, 2, 4]
    assert batch.input_ids.tolist() == [[8, 12, 13, 16, 0], [5, 6, 7, 17, 18]]
    assert batch.row.tolist() == [0, 0, 1, 1]
    assert batch.token.tolist() == [12, 13, 14, 16, 2, 15, 17, 18, 2]


def test_the_sequences_of_a_batch_come_back() -> None:
    assert sequences_in(collate(SEQUENCES, 0)) == SEQUENCES


def test_a_model_that_cannot_see_packed_rows_gets_rows_of_one_sequence() -> None:
    assert plan_rows(SEQUENCES, width=None) == [[0], [1], [2], [3], [4]]


def test_long_responses_share_a_short_prompt_only_in_a_wide_model() -> None:
    # Behind a prompt of 30, each of 300 saves 30 tokens and is paired with all the others.
    sequences = [Encoded((*range(30), *range(300)), 30) for _ in range(4)]
    assert plan_rows(sequences, width=64) == [[0], [1], [2], [3]]
    assert plan_rows(sequences, width=8192) == [[0, 1, 2, 3]]


def test_rows_and_batches_keep_to_their_bounds_and_lose_no_sequence() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 30, (60, 2), generator=generator).tolist()
    sequences = [
        Encoded((*range(p + k % 4), *range(r)), p + k % 4)
        for k, (p, r) in enumerate((lengths[k // 6][0], r) for k, (_, r) in enumerate(lengths))
    ]
    bound = 70
    rows = plan_rows(sequences, 512, bound)
    assert sorted(number for row in rows for number in row) == list(range(60))
    assert all(packed_length(sequences, row) <= bound for row in rows)
    batches = list(rows_by_length(sequences, rows, 3 * bound))
    assert sorted(row for batch in batches for row in batch) == sorted(rows)
    for batch in batches:
        longest = max(packed_length(sequences, row) for row in batch)
        assert longest == packed_length(sequences, batch[0])
        assert len(batch) * longest <= 3 * bound


THREE = [Encoded((5, 6, 7, 8), 2), Encoded((5, 6, 9), 2), Encoded((3, 4, 4, 4, 2), 1)]


def batch() -> TokenBatch:
    plain = collate(THREE, 0)
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
    there = own.to("cpu")
    assert there.token is own.token and there.top.entropy is own.top.entropy


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
    own = collate([*THREE, THREE[0]], 0, side=sides)
    values = torch.arange(4.0)
    chosen, rejected = own.by_side(values)
    assert torch.equal(chosen, values[own.side == CHOSEN])
    assert torch.equal(rejected, values[own.side == REJECTED])
