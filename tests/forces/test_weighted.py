"""Tokens that stand for weighted sums of log-probabilities."""

from __future__ import annotations

import pytest
import torch

from dynolab.data.encode import Encoded
from dynolab.forces import PolicyFunction
from dynolab.forces.map.weighted import WeightedResponse, scores_along, weighted_batch
from tests.forces.small_models import direction, encoded, neox, relative

SEQUENCE = encoded(3, prompt=4, response=3)


@pytest.fixture(scope="module")
def policy() -> PolicyFunction:
    return PolicyFunction(neox(), torch.float64)


def two_targets(sequence: Encoded, temperature: float) -> WeightedResponse:
    generator = torch.Generator().manual_seed(sequence.ids[0])
    shape = (sequence.response_length, 2)
    return WeightedResponse(
        sequence,
        torch.randint(3, 50, shape, generator=generator),
        torch.randn(shape, generator=generator, dtype=torch.float64),
        temperature,
    )


def test_a_response_of_its_own_stands_for_each_tokens_log_probability(
    policy: PolicyFunction,
) -> None:
    own = WeightedResponse.own(SEQUENCE, policy)
    assert (own.sequence, own.temperature) == (SEQUENCE, 1.0)
    assert own.targets.tolist() == [[token] for token in SEQUENCE.ids[4:]]
    assert own.weights.tolist() == [[1.0]] * 3 and own.weights.dtype == torch.float64
    assert WeightedResponse.own(SEQUENCE, policy, 0.5).temperature == 0.5


def test_a_span_takes_what_precedes_it_for_prompt() -> None:
    whole = two_targets(SEQUENCE, 0.7)
    middle = whole.span(1, 2)
    assert middle.sequence == Encoded(SEQUENCE.ids[:6], 5)
    assert torch.equal(middle.targets, whole.targets[1:2])
    assert torch.equal(middle.weights, whole.weights[1:2])
    assert middle.temperature == 0.7
    assert whole.span(0, 3).sequence == SEQUENCE


def test_scores_are_weighted_sums_at_the_responses_temperature(policy: PolicyFunction) -> None:
    one = two_targets(SEQUENCE, 0.5)
    with torch.no_grad():
        logits = policy.model(torch.tensor([SEQUENCE.ids])).logits[0, 3:6]
    logps = torch.log_softmax(logits / 0.5, dim=-1)
    expected = [
        sum(
            float(w * logps[row, t])
            for w, t in zip(one.weights[row], one.targets[row], strict=True)
        )
        for row in range(3)
    ]
    assert one.scores(policy, policy.weights).tolist() == pytest.approx(expected, rel=1e-10)


def test_a_batch_has_its_responses_temperature_and_order(policy: PolicyFunction) -> None:
    responses = [two_targets(SEQUENCE, 0.5), two_targets(encoded(4, 2, 5), 0.5)]
    batch = weighted_batch(responses, policy)
    assert batch.temperature == 0.5
    assert batch.token.tolist() == [*SEQUENCE.ids[4:], *encoded(4, 2, 5).ids[2:]]


def test_scores_along_directions_are_derivatives_of_the_scores(policy: PolicyFunction) -> None:
    responses = [two_targets(SEQUENCE, 0.5), two_targets(encoded(4, 2, 5), 0.5)]
    directions = [direction(policy.model, 1e-3, seed) for seed in (1, 2)]
    found = scores_along(policy, policy.weights, directions, responses)
    assert found.shape == (2, 8)
    leaves = {name: w.clone().requires_grad_() for name, w in policy.weights.items()}
    scores = torch.cat([response.scores(policy, leaves) for response in responses])
    for row, change in zip(found, directions, strict=True):
        truth = []
        for score in scores:
            gradients = torch.autograd.grad(score, list(leaves.values()), retain_graph=True)
            truth.append(
                sum((g * d).sum() for g, d in zip(gradients, change.values(), strict=True))
            )
        assert relative(row, torch.stack(truth)) < 1e-10
