"""Prompts that run once, against the plain forward of one sequence at a time."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from dynolab.data.encode import Encoded, Encoder
from dynolab.data.prefixes import PrefixBatch, collate_prefixes, plan_prefixes
from dynolab.forces.function.precision import dtype_preserving
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from tests.forces.families import FAMILIES
from tests.likelihood.test_packed import SHAPES, WINDOWED, model_of, one_by_one, sequences_of
from tests.training.small import make_tokenizer

unchanged_model = cache(model_of)
"""A family's model, whose layouts are measured once."""


@pytest.mark.parametrize("batch_tokens", [12, 40, 1000])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", [*FAMILIES, *WINDOWED])
@torch.no_grad()
def test_shared_prompts_equal_one_sequence_at_a_time(
    family: str, shape: str, batch_tokens: int
) -> None:
    model = unchanged_model(family)
    sequences, _ = sequences_of(SHAPES[shape])
    seen: list[int] = []
    with dtype_preserving(model):
        for rows in plan_prefixes(sequences, batch_tokens, shared=True):
            batch, members = collate_prefixes(sequences, rows, 0)
            logps = ResponseLogits(model)(batch, token_logps)
            truth = one_by_one(model, [sequences[number] for number in members])
            torch.testing.assert_close(logps, truth, atol=1e-9, rtol=0)
            seen += members
    assert sorted(seen) == list(range(len(sequences)))


def test_a_prompt_is_there_once_and_nothing_is_padded() -> None:
    sequences, _ = sequences_of(SHAPES["several prompts"])
    (rows,) = plan_prefixes(sequences, 1000, shared=True)
    batch, _ = collate_prefixes(sequences, rows, 0)
    assert isinstance(batch, PrefixBatch)
    prompts = {sequence.ids[: sequence.prompt_length] for sequence in sequences}
    tails = sum(sequence.response_length - 1 for sequence in sequences)
    assert batch.input_ids.shape == (1, sum(map(len, prompts)) + tails)


def test_no_batch_is_larger_than_asked_unless_it_is_one_sequence() -> None:
    sequences, _ = sequences_of(SHAPES["several prompts"])
    for rows in plan_prefixes(sequences, 12, shared=True):
        batch, members = collate_prefixes(sequences, rows, 0)
        assert batch.input_ids.numel() <= 12 or len(members) == 1


@pytest.mark.parametrize("filled", [0.0, 0.5, 1.0])
@torch.no_grad()
def test_pieces_of_any_filling_give_the_same(filled: float) -> None:
    model = unchanged_model("llama_tied")
    prompt = (5, 6, 7, 8)
    sequences = [Encoded((*prompt, *range(9, 10 + n)), 4) for n in (5, 0, 3, 2, 5)]
    with dtype_preserving(model):
        batch, members = collate_prefixes(sequences, [[0, 1, 2, 3, 4]], 0, filled)
        logps = ResponseLogits(model)(batch, token_logps)
        truth = one_by_one(model, [sequences[number] for number in members])
    assert isinstance(batch, PrefixBatch)
    assert len(batch.pieces) == {0.0: 2, 0.5: 3, 1.0: 4}[filled]
    torch.testing.assert_close(logps, truth, atol=1e-9, rtol=0)


def test_sequences_with_prompts_of_their_own_are_a_plain_batch() -> None:
    sequences = [Encoded((5, 6, 7), 1), Encoded((8, 9, 2), 2)]
    (rows,) = plan_prefixes(sequences, 1000, shared=True)
    batch, members = collate_prefixes(sequences, rows, 0)
    assert not isinstance(batch, PrefixBatch)
    assert sorted(members) == [0, 1]


def test_a_cut_prompt_is_cut_alike_for_all_its_responses() -> None:
    tokenizer = make_tokenizer()
    prompt, texts = " ".join(f"w{n}" for n in range(10)), [" w1 w2", " w3 w4 w5 w6 w7", " w1" * 30]
    cut = Encoder(tokenizer, 12, "truncate_left")
    short, long, none = cut.responses("a", prompt, texts)
    assert none is None
    assert short is not None and long is not None
    assert len(long.ids) == 12
    kept = long.ids[: long.prompt_length]
    assert short.ids[: short.prompt_length] == kept
    assert kept[0] == tokenizer.bos_token_id
    assert (cut.counts.kept, cut.counts.truncated, cut.counts.dropped) == (2, 2, 1)
    dropped = Encoder(tokenizer, 16, "drop").responses("a", prompt, texts)
    assert [one is None for one in dropped] == [False, True, True]
