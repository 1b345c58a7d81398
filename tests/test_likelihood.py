"""Response log-probabilities against the model's own full logits, one sequence at a time."""

from __future__ import annotations

import math

import pytest
import torch

from dynolab.data.batches import collate
from dynolab.data.encode import Encoder
from dynolab.likelihood import ResponseLogits, argmax_view, token_logps
from tests.training.small import make_policy, make_rows, make_tokenizer


@pytest.fixture(scope="module")
def encoded():
    encoder = Encoder(make_tokenizer(), 48, "error")
    return [encoder.response(row.id, row.prompt, row.chosen) for row in make_rows(7)]


@torch.no_grad()
def test_batch_and_padding_do_not_matter(encoded) -> None:
    policy = make_policy(make_tokenizer())
    batch = collate(encoded, pad_id=0)
    together = token_logps(ResponseLogits(policy)(batch), batch)
    for number, one in enumerate(encoded):
        ids = torch.tensor([one.ids])
        logps = torch.log_softmax(policy(input_ids=ids).logits[0].float(), -1)
        expected = logps[one.prompt_length - 1 : -1].gather(-1, ids[0, one.prompt_length :, None])
        torch.testing.assert_close(
            together[batch.sequence == number], expected.squeeze(-1), atol=1e-5, rtol=0
        )


@torch.no_grad()
def test_a_token_after_the_response_changes_nothing(encoded) -> None:
    logits = ResponseLogits(make_policy(make_tokenizer()))
    batch = collate(encoded, pad_id=0)
    other = collate(encoded, pad_id=17)  # another padding token
    torch.testing.assert_close(logits(batch), logits(other))


def test_response_tokens_are_listed_with_the_place_that_predicts_them(encoded) -> None:
    batch = collate(encoded, pad_id=0)
    assert len(batch.token) == sum(one.response_length for one in encoded)
    for sequence, position, token in zip(batch.sequence, batch.position, batch.token, strict=True):
        assert encoded[int(sequence)].ids[int(position) + 1] == int(token)
        assert batch.position_ids[sequence, position] == position


def test_the_mass_outside_the_argmax_survives_certainty() -> None:
    logits = torch.zeros(2, 50)
    logits[0, 7], logits[1, 3] = 40.0, 1.0
    view = argmax_view(logits)
    exact = torch.log_softmax(logits.double(), -1)
    assert view.token.tolist() == [7, 3]
    torch.testing.assert_close(view.logp.double(), exact.max(-1).values, atol=1e-6, rtol=1e-6)
    # log1p(−exp(logp)) would be −inf here: in float32 the argmax's probability rounds to one.
    assert view.outside_logmass[0] == pytest.approx(-40 + math.log(49), abs=1e-4)
