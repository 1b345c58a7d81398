"""Response log-probabilities against the model's own full logits, one sequence at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from dynolab.data.batches import collate
from dynolab.data.encode import Encoder
from dynolab.likelihood.token_logps import (
    ResponseLogits,
    target_logps,
    token_logps,
    top_tokens,
)
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


@torch.no_grad()
def test_hidden_states_are_those_the_head_reads(encoded) -> None:
    policy = make_policy(make_tokenizer())
    batch = collate(encoded, pad_id=0)
    hidden = ResponseLogits(policy).hidden(batch)
    for number, one in enumerate(encoded):
        alone = policy(input_ids=torch.tensor([one.ids]), output_hidden_states=True)
        expected = alone.hidden_states[-1][0, one.prompt_length - 1 : -1]
        torch.testing.assert_close(hidden[batch.sequence == number], expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_likelihoods_and_likeliest_tokens_are_taken_at_the_batch_s_temperature(encoded) -> None:
    logits = ResponseLogits(make_policy(make_tokenizer()))(collate(encoded, pad_id=0)).double()
    batch = replace(collate(encoded, pad_id=0), temperature=0.4)
    exact = torch.log_softmax(logits / 0.4, -1)
    own = exact[torch.arange(len(batch.token)), batch.token]
    torch.testing.assert_close(token_logps(logits, batch), own)
    top = top_tokens(logits, batch, 3)
    ranked = exact.sort(dim=-1, descending=True)
    torch.testing.assert_close(top.logp, ranked.values[:, :3])
    assert torch.equal(top.token, ranked.indices[:, :3])
    entropy = torch.distributions.Categorical(logits=exact).entropy()
    torch.testing.assert_close(top.entropy, entropy)
    dense = target_logps(logits, replace(batch, top=top))
    torch.testing.assert_close(dense, torch.cat([own[:, None], top.logp], dim=1))


def test_an_impossible_token_has_no_share_in_the_entropy(encoded) -> None:
    batch = collate(encoded[:1], pad_id=0)
    logits = torch.zeros(len(batch.token), 5)
    logits[:, 2:] = -math.inf
    assert top_tokens(logits, batch, 1).entropy.tolist() == pytest.approx(
        [math.log(2)] * len(batch.token)
    )
