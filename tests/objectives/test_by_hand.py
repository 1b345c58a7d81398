"""Small cases of the objectives whose numbers can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dynolab.data.batches import TokenBatch, TopTokens, Totals
from dynolab.errors import ConfigError
from dynolab.objectives import (
    AdvantageRuleConfig,
    Answers,
    GRPOConfig,
    HingeConfig,
    SimKO,
    SimKOConfig,
    SLiCConfig,
    build_objective,
    group_advantages,
    rewrite_advantages,
    target_force,
)
from dynolab.objectives.advantage_rules import _least_mean, _randomised, influence
from dynolab.objectives.policy_gradient import ClippedConfig, aggregation_weights
from tests.objectives.sampled import batch_of
from tests.objectives.test_advantage_rules import scene


def test_advantages_are_centred_rewards_over_their_deviation() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    # Centred ±1/2; the variance with Bessel's correction is 4 · (1/4) / 3.
    size = 0.5 / ((1 / 3) ** 0.5 + 1e-4)
    expected = pytest.approx([size, -size, -size, size], rel=1e-12)
    assert group_advantages(rewards).tolist() == expected
    assert group_advantages(rewards, scale_by_std=False).tolist() == [0.5, -0.5, -0.5, 0.5]
    assert group_advantages(torch.tensor([2.0, 2.0, 2.0])).tolist() == [0.0, 0.0, 0.0]


def test_an_advantage_compares_two_completions_or_more() -> None:
    two = group_advantages(torch.tensor([1.0, 0.0]), scale_by_std=False)
    assert two.tolist() == [0.5, -0.5]
    message = "^group size = 1: an advantage compares completions; sample two or more$"
    with pytest.raises(ConfigError, match=message):
        group_advantages(torch.tensor([1.0]))


def test_a_rule_sees_the_policy_at_the_temperature_of_the_sampling() -> None:
    batch, correct, logits, hidden = scene()
    rule = AdvantageRuleConfig(name="nthr", factor=0.0, threshold=0.25)

    def rewritten(temperature: float, logits: Tensor) -> Tensor:
        warm = replace(batch, temperature=temperature)
        return rewrite_advantages(rule, warm, correct, logits, hidden)

    plain = rewritten(1.0, logits)
    for temperature in (0.0625, 16.0):
        assert torch.equal(rewritten(temperature, temperature * logits), plain)
        assert not torch.equal(rewritten(temperature, logits), plain)


def test_tokens_are_drawn_with_seed_zero_unless_another_is_given() -> None:
    batch, correct, logits, hidden = scene()
    rule = AdvantageRuleConfig(name="random_tokens", factor=0.0)
    plain = rewrite_advantages(rule, batch, correct, logits, hidden)
    first, second = (
        rewrite_advantages(rule, batch, correct, logits, hidden, seed=seed) for seed in (0, 1)
    )
    assert torch.equal(plain, first)
    assert not torch.equal(plain, second)


def test_influence_is_taken_over_the_group_s_tokens_and_in_full_precision() -> None:
    batch, correct, logits, hidden = scene()
    right = correct[batch.sequence]
    by_default = influence(logits, hidden, batch.token, right)
    assert torch.equal(by_default, influence(logits, hidden, batch.token, right, present_only=True))
    half = influence(logits.bfloat16(), hidden.bfloat16(), batch.token, right)
    single = influence(logits.bfloat16().float(), hidden.bfloat16().float(), batch.token, right)
    assert (by_default.dtype, half.dtype) == (torch.float64, torch.float32)
    assert torch.equal(half, single)


def test_the_bound_is_the_least_mean_of_a_right_answer() -> None:
    # Answers 0 and 2 are right, with means 3 and 1; answer 1 is wrong.
    completion = torch.tensor([0, 0, 1, 1, 1, 2, 2])
    strength = torch.tensor([2.0, 4.0, 2.0, 2.5, 1.5, 9.0, -7.0])
    assert float(_least_mean(strength, completion, completion != 1)) == 1.0


def test_as_many_tokens_of_each_answer_are_drawn() -> None:
    completion = torch.tensor([0, 0, 1, 1, 1, 2, 2])
    chosen = torch.tensor([False, False, True, False, True, True, True])
    for seed in range(5):
        drawn = _randomised(chosen, completion, torch.Generator().manual_seed(seed))
        assert [int(drawn[completion == one].sum()) for one in range(3)] == [0, 2, 2]


@pytest.mark.parametrize("aggregation", ["grpo", "dr_grpo", "dapo", "bnpo"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_token_s_weight_is_one_over_its_denominator(aggregation: str, dtype: torch.dtype) -> None:
    batch, _ = batch_of()
    batch = replace(batch, totals=Totals(examples=2, tokens=70, sequences=9))
    config = ClippedConfig.model_validate({"aggregation": aggregation, "max_tokens": 11})
    weights = aggregation_weights(config, batch, torch.zeros(len(batch.token), dtype=dtype))
    lengths = [int((batch.sequence == one).sum()) for one in batch.sequence]
    below = {"grpo": [9 * length for length in lengths], "dr_grpo": [99] * len(lengths)}
    expected = 1 / torch.tensor(below.get(aggregation, [70] * len(lengths)), dtype=dtype)
    assert weights.dtype == dtype
    torch.testing.assert_close(weights, expected, rtol=1e-7, atol=0)


def test_dr_grpo_needs_to_know_the_longest_completion() -> None:
    message = (
        "^max_tokens = None: dr_grpo divides by it; set it to the token limit of the sampling$"
    )
    with pytest.raises(ConfigError, match=message):
        GRPOConfig(aggregation="dr_grpo")
    assert GRPOConfig(aggregation="dr_grpo", max_tokens=4).max_tokens == 4
    assert GRPOConfig(aggregation="dapo").max_tokens is None


@pytest.mark.parametrize("config", [GRPOConfig(kl=0.1), SimKOConfig(kl=0.1)], ids=repr)
def test_a_policy_gradient_reports_in_the_precision_of_its_log_probabilities(
    config: GRPOConfig | SimKOConfig,
) -> None:
    objective = build_objective(config)
    batch, logits = batch_of()
    logps = logits.log_softmax(-1).gather(-1, batch.targets)
    reported = objective.metrics(logps if objective.dense else logps[:, 0], batch)
    assert {value.dtype for value in reported.values()} == {torch.float64}
    assert not any(value.requires_grad for value in reported.values())


def with_entropy(batch: TokenBatch, entropy: Tensor, likeliest: Tensor) -> TokenBatch:
    top = batch.top
    assert top is not None
    tokens = torch.cat([likeliest[:, None], top.token[:, 1:]], dim=1)
    return replace(batch, top=TopTokens(tokens, top.logp, entropy=entropy))


def test_a_token_shares_where_its_entropy_is_above_its_response_s_quantile() -> None:
    batch, _ = batch_of()
    place = torch.arange(len(batch.token), dtype=torch.float64)
    first = batch.sequence_length.cumsum(0) - batch.sequence_length
    within = place - first[batch.sequence]
    batch = with_entropy(batch, within, batch.token)
    half = SimKO(SimKOConfig(gate_quantile=0.5, share=0.4, penalty=2.0))
    # The median of 0, 1, …, n − 1 is (n − 1)/2; a response of one token is its own median.
    gate = within > (batch.sequence_length[batch.sequence] - 1) / 2
    assert torch.equal(half._gate(batch), gate.double())
    advantage = batch.advantage
    shared = torch.where(gate & (advantage > 0), 0.4, 0.0).double()
    torch.testing.assert_close(half._shared(batch), shared, rtol=1e-6, atol=0)
    doubled = gate & (advantage < 0)
    assert torch.equal(half._advantage(batch), torch.where(doubled, 2 * advantage, advantage))
    assert bool(doubled.any()) and bool((gate & (advantage > 0)).any())
    # A wrong token that is not the likeliest is pushed down as hard as before.
    other = with_entropy(batch, within, (batch.token + 1) % 20)
    assert torch.equal(half._advantage(other), advantage)


def test_the_mixed_ratio_has_the_value_of_the_token_s_own_and_shares_its_slope() -> None:
    ratios = torch.tensor([[2.0, 0.5, 4.0, 1.0]], dtype=torch.float64, requires_grad=True)
    shared = torch.tensor([0.3], dtype=torch.float64)
    mixed = SimKO(SimKOConfig())._mixed(ratios, shared)
    assert mixed.item() == pytest.approx(2.0, rel=1e-7)
    mixed.sum().backward()
    assert ratios.grad is not None
    # 1 − αw; αw/K · sg(r)/sg(ρ_k) for each of the K = 3.
    assert ratios.grad[0].tolist() == pytest.approx([0.7, 0.4, 0.05, 0.2], rel=1e-6)


def test_a_hinge_that_is_just_reached_pushes_no_more() -> None:
    chosen = torch.tensor([-1.0, -1.0, -1.0])
    rejected = torch.tensor([-2.5, -3.0, -3.5])
    for config, up, down in (
        (SLiCConfig(margin=2.0, sft_weight=0.25), [-1.25, -0.25, -0.25], [1.0, 0.0, 0.0]),
        (HingeConfig(beta=0.5), [-0.5, 0.0, 0.0], [0.5, 0.0, 0.0]),
    ):
        scores = [values.clone().requires_grad_() for values in (chosen, rejected)]
        sides = [Answers(one, one, torch.ones_like(one, dtype=torch.long)) for one in scores]
        slopes = torch.autograd.grad(build_objective(config).pair_loss(*sides).sum(), scores)
        assert [slope.tolist() for slope in slopes] == [up, down]


def test_a_force_pulls_to_its_targets_with_their_rates() -> None:
    logits = torch.zeros(1, 4, dtype=torch.float64)
    targets = torch.tensor([[2, 0]])
    one = target_force(torch.tensor([0.8], dtype=torch.float64), logits, targets)
    assert one.tolist() == [pytest.approx([0.2, 0.2, -0.6, 0.2])]
    rates = torch.tensor([[0.8, 0.4]], dtype=torch.float64)
    both = target_force(rates, logits, targets)
    assert both.tolist() == [pytest.approx([-0.1, 0.3, -0.5, 0.3])]
    warm = target_force(rates, logits, targets, 2.0)
    assert warm.tolist() == [pytest.approx([-0.05, 0.15, -0.25, 0.15])]
    slope = torch.log(torch.tensor([[1.0, 2.0, 1.0]], dtype=torch.float64))
    at_half = target_force(torch.ones(1, dtype=torch.float64), slope, torch.tensor([[0]]), 0.5)
    # Doubled logits: 1 : 4 : 1.
    assert at_half.tolist() == [pytest.approx([-10 / 6, 8 / 6, 2 / 6])]
