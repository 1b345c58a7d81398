"""Policy gradients on groups: their forces, clipping and denominators, and what SimKO shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from pydantic import ValidationError
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED
from dynolab.data.groups import Group, collate_groups, count_group_totals
from dynolab.errors import ConfigError
from dynolab.likelihood.token_logps import target_logps, token_logps
from dynolab.objectives import (
    GRPOConfig,
    SimKOConfig,
    build_objective,
    force,
    read_logps,
)
from dynolab.objectives.grpo import KLCovConfig, anchors
from dynolab.objectives.policy_gradient import aggregation_weights, clipped, live
from dynolab.training.config import TrainConfig
from tests.objectives.sampled import GROUPS, RANKS, VOCABULARY, batch_of

CONFIGS = [
    GRPOConfig(aggregation="grpo"),
    GRPOConfig(aggregation="grpo", ratio="sequence", clip_low=0.05, clip_high=0.08, kl=0.1),
    GRPOConfig(aggregation="dapo", clip_high=0.28),
    GRPOConfig(aggregation="bnpo", kl=0.05),
    GRPOConfig(aggregation="dr_grpo", max_tokens=9, kl=2.0),
    GRPOConfig(entropy=0.3),
    GRPOConfig(ratio="sequence", entropy=0.2, kl=0.1),
]
SIMKO_CONFIGS = [
    SimKOConfig(),
    SimKOConfig(share=0.4, gate_quantile=0.3, aggregation="grpo", kl=0.2),
    SimKOConfig(share=1.0, gate_quantile=0.0, penalty=2.0, aggregation="dr_grpo", max_tokens=7),
]


def label(config: GRPOConfig) -> str:
    return f"{config.aggregation}-{config.ratio}-{config.kl}-{config.entropy}"


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("config", CONFIGS, ids=label)
def test_the_force_is_the_loss_s_gradient_by_the_logits_at_any_temperature(config, temperature):
    objective = build_objective(config)
    batch, logits = batch_of(temperature=temperature)
    logps = token_logps(logits, batch)
    loss = objective.loss(logps, batch)
    by_logps, by_logits = torch.autograd.grad(loss, (logps, logits))
    rates = objective.token_weights(logps.detach(), batch)
    torch.testing.assert_close(rates, -by_logps, rtol=1e-10, atol=1e-15)
    closed = force(rates, logits.detach(), batch)
    torch.testing.assert_close(closed, by_logits, rtol=1e-9, atol=1e-14)
    assert closed.sum(-1).abs().max() <= VOCABULARY * 2**-52 * closed.abs().max()
    cold = force(rates, logits.detach(), replace(batch, temperature=1.0))
    assert temperature == 1 or (cold - by_logits).norm() / by_logits.norm() > 0.1


def test_the_entropy_bonus_is_the_entropy_s_gradient_in_the_mean_over_samples() -> None:
    """`Σ_y π_y (−log π_y) ∇ log π_y = ∇H` at the sampling policy, of one position."""
    batch, logits = batch_of(GROUPS[:1])
    place = 0
    row = logits[place].detach().requires_grad_()
    entropy = torch.distributions.Categorical(logits=row).entropy()
    (expected,) = torch.autograd.grad(entropy, row)
    policy = torch.log_softmax(row.detach(), -1)
    weight = 1 / (batch.totals.sequences * int(batch.sequence_length[0]))
    objective = build_objective(GRPOConfig(entropy=0.5))
    silent = replace(batch, advantage=torch.zeros_like(batch.token, dtype=torch.float64))
    mean = torch.zeros_like(policy)
    for token in range(VOCABULARY):
        own = torch.full_like(silent.token, -1, dtype=torch.float64)
        own[place] = policy[token]
        rate = objective.token_weights(own, replace(silent, old=own))[place]
        one_hot = torch.nn.functional.one_hot(torch.tensor(token), VOCABULARY)
        mean += policy[token].exp() * rate * (one_hot - policy.exp())
    torch.testing.assert_close(mean, 0.5 * weight * expected, rtol=1e-9, atol=1e-14)


def test_kl_cov_holds_the_tokens_of_the_highest_covariance_to_their_old_policy() -> None:
    """Its term adds `−w a (ρ − 1)` to the weights; its mean over samples is KL(π_old‖π)."""
    held, plain = GRPOConfig(kl_cov=KLCovConfig(share=0.1, weight=0.7)), GRPOConfig()
    batch, logits = batch_of()
    anchor = anchors(held.kl_cov, batch.advantage, batch.old)
    covariance = (batch.advantage - batch.advantage.mean()) * (batch.old - batch.old.mean())
    assert set(anchor.tolist()) == {0.0, 0.7}
    assert int((anchor > 0).sum()) == int(0.1 * len(anchor)) > 1
    assert float(covariance[anchor > 0].min()) > float(covariance[anchor == 0].max())
    logps = token_logps(logits, batch).detach().requires_grad_()
    objective, anchored = build_objective(held), replace(batch, anchor=anchor)
    (by_logps,) = torch.autograd.grad(objective.loss(logps, anchored), logps)
    rates = objective.token_weights(logps.detach(), anchored)
    torch.testing.assert_close(rates, -by_logps, rtol=1e-10, atol=1e-15)
    moved = torch.expm1(logps.detach() - batch.old)
    pull = aggregation_weights(held, batch, logps.detach()) * anchor * moved
    whole = build_objective(plain).token_weights(logps.detach(), batch)
    torch.testing.assert_close(rates, whole - pull, rtol=1e-10, atol=1e-15)
    old, now = torch.randn(2, VOCABULARY, dtype=torch.float64).log_softmax(-1)
    change = now - old
    mean = (old.exp() * (torch.expm1(change) - change)).sum()
    torch.testing.assert_close(mean, -(old.exp() * change).sum())


LOG_RATIO = st.floats(-30, 30)


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@settings(deadline=None)
@given(
    drift=st.lists(LOG_RATIO, min_size=3, max_size=3),
    advantage=st.lists(st.floats(-5, 5), min_size=3, max_size=3),
)
def test_weights_are_the_closed_form_however_far_the_policy_went(ratio, drift, advantage):
    """`c_l = w_l [Â_l ρ_l 1[live] + β(e^{ref − π} − 1)]`; a sequence's tokens share the mean of
    the first part. They may have their own advantages; ratios of e^±30 are clipped or not."""
    config = GRPOConfig(ratio=ratio, kl=0.1)
    objective = build_objective(config)
    batch, _ = batch_of(GROUPS[:1])
    three = torch.arange(len(batch.token)) % 3
    batch = replace(batch, advantage=torch.tensor(advantage, dtype=torch.float64)[three])
    moved = batch.old + torch.tensor(drift, dtype=torch.float64)[three]
    change = moved - batch.old

    def mean(values):
        return (batch.sequence_sum(values) / batch.sequence_length)[batch.sequence]

    rho = (change if ratio == "token" else mean(change)).exp()
    weight = aggregation_weights(config, batch, moved)
    closed = weight * batch.advantage * rho * live(config, rho, batch.advantage)
    closed = closed if ratio == "token" else mean(closed)
    closed = closed + weight * 0.1 * torch.expm1(batch.reference - moved)
    rates = objective.token_weights(moved, batch)
    torch.testing.assert_close(rates, closed, rtol=1e-9, atol=1e-13)


def test_clipping_is_one_sided():
    """A two-sided indicator would leave alone the tokens that must be brought back."""
    config = GRPOConfig()
    ratio = torch.tensor([0.5, 1.0, 1.5, 0.5, 1.0, 1.5], dtype=torch.float64).requires_grad_()
    advantage = torch.tensor([1.0, 1, 1, -1, -1, -1], dtype=torch.float64)
    (slope,) = torch.autograd.grad(clipped(config, ratio, advantage).sum(), ratio)
    mask = live(config, ratio, advantage)
    assert mask.tolist() == [True, True, False, False, True, True]
    torch.testing.assert_close(slope, advantage * mask)


@pytest.mark.parametrize("edge", [1 + 0.2, 1 - 0.2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_very_edge_of_the_clip_has_autograd_s_slope(edge, dtype, sign):
    config = GRPOConfig()
    ratio = torch.tensor([edge], dtype=dtype).requires_grad_()
    advantage = torch.tensor([sign], dtype=dtype)
    (slope,) = torch.autograd.grad(clipped(config, ratio, advantage).sum(), ratio)
    torch.testing.assert_close(slope, advantage * live(config, ratio, advantage))


@pytest.mark.parametrize("config", [*CONFIGS, *SIMKO_CONFIGS], ids=repr)
def test_micro_batches_of_groups_add_up(config):
    objective = build_objective(config)

    def terms_of(groups: Sequence[Group]) -> dict[str, Tensor]:
        batch, logits = batch_of(groups)
        logps = read_logps(objective, logits, batch)
        pushed = objective.token_weights(logps.detach(), batch).square().sum()
        named = {"loss": objective.loss(logps, batch), "pushed": pushed}
        return named | objective.metrics(logps, batch)

    whole = terms_of(GROUPS)
    parts = [terms_of(groups) for groups in (GROUPS[:1], GROUPS[1:3], GROUPS[3:])]
    for name, value in whole.items():
        bound = 1e-12 if name in ("loss", "pushed") else 1e-6
        total = sum(part[name].double() for part in parts)
        torch.testing.assert_close(total, value.double(), rtol=bound, atol=0)


def test_the_first_update_after_sampling_needs_no_old_log_probabilities():
    objective = build_objective(GRPOConfig(aggregation="grpo"))
    batch, logits = batch_of(drift=0.0)
    logps = token_logps(logits, batch)
    (told,) = torch.autograd.grad(objective.loss(logps, batch), logps, retain_graph=True)
    fresh = replace(batch, old=None)
    (own,) = torch.autograd.grad(objective.loss(logps, fresh), logps)
    torch.testing.assert_close(own, told)
    torch.testing.assert_close(objective.token_weights(logps.detach(), fresh), -own)


def test_a_completion_stands_on_the_side_its_advantage_pushes_it_to():
    batch, _ = batch_of()
    assert bool((batch.advantage[batch.token_side == CHOSEN] >= 0).all())
    assert bool((batch.advantage[batch.token_side == REJECTED] < 0).all())
    assert len(batch.side) == sum(len(group.completions) for group in GROUPS)
    assert [batch.ids[number] for number in batch.example.tolist()] == [
        group.id for group in GROUPS for _ in group.completions
    ]
    assert batch.totals.sequences == len(batch.side)


def test_a_batch_of_groups_moves_whole():
    batch, _ = batch_of(temperature=0.5)
    moved = batch.to("meta")
    assert moved.top.token.is_meta and moved.advantage.is_meta and moved.old.is_meta
    assert moved.temperature == 0.5


def test_groups_without_a_reference_are_collated_without_one():
    bare = [
        replace(one, completions=tuple(replace(c, reference=None) for c in one.completions))
        for one in GROUPS
    ]
    batch = collate_groups(bare, 0, count_group_totals(bare))
    assert batch.reference is None and batch.old is None and batch.top is None


def test_training_on_rows_refuses_objectives_of_groups_when_it_is_configured():
    with pytest.raises(ValidationError, match=r"expected tags.*'sft'"):
        TrainConfig.model_validate({"objective": {"name": "grpo"}})


def test_a_loss_on_groups_needs_their_advantages():
    batch, logits = batch_of()
    with pytest.raises(ConfigError, match="sampled groups"):
        build_objective(GRPOConfig()).loss(
            token_logps(logits, batch), replace(batch, advantage=None)
        )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("drift", [0.0, 0.3, 5.0])
@pytest.mark.parametrize("config", SIMKO_CONFIGS, ids=repr)
def test_the_force_reaches_the_likeliest_tokens_too(config, drift, temperature):
    objective = build_objective(config)
    batch, logits = batch_of(drift=drift, temperature=temperature)
    logps = read_logps(objective, logits, batch)
    by_logps, by_logits = torch.autograd.grad(objective.loss(logps, batch), (logps, logits))
    rates = objective.token_weights(logps.detach(), batch)
    assert rates.shape == (len(batch.token), 1 + RANKS)
    torch.testing.assert_close(rates, -by_logps, rtol=1e-9, atol=1e-15)
    closed = force(rates, logits.detach(), batch)
    torch.testing.assert_close(closed, by_logits, rtol=1e-9, atol=1e-13)
    assert closed.sum(-1).abs().max() <= VOCABULARY * 2**-50 * closed.abs().max()


def test_before_the_policy_moves_a_correct_token_shares_its_gradient_with_the_likeliest():
    """G = Âr(π − [(1 − αw) e_y + (αw/K) Σ e_k]) with r = 1."""
    config = SimKOConfig(share=0.4, gate_quantile=0.5)
    batch, logits = batch_of(drift=0.0)
    logps = target_logps(logits, batch).detach()
    pushed = force(build_objective(config).token_weights(logps, batch), logits.detach(), batch)
    policy = torch.softmax(logits.detach(), -1)
    shared = 0
    for n in torch.nonzero(batch.advantage > 0).squeeze(1).tolist():
        mine = batch.top.entropy[batch.sequence == batch.sequence[n]]
        gate = float(batch.top.entropy[n] > mine.quantile(0.5))
        shared += gate
        target = torch.zeros(VOCABULARY, dtype=torch.float64)
        target[batch.token[n]] += 1 - 0.4 * gate
        target[batch.top.token[n]] += 0.4 * gate / RANKS
        weight = 1 / (len(batch.side) * len(mine))
        expected = weight * batch.advantage[n] * (policy[n] - target)
        torch.testing.assert_close(pushed[n], expected, rtol=1e-6, atol=1e-9)
    assert shared > 0


def test_only_gated_likeliest_tokens_of_wrong_responses_are_pushed_harder():
    config = SimKOConfig(gate_quantile=0.3, penalty=1.5)
    batch, logits = batch_of(drift=0.0)
    likeliest = torch.arange(len(batch.token)) % 2 == 0
    own = torch.where(likeliest, batch.top.token[:, 0], batch.top.token[:, 1])
    batch = replace(batch, token=own, old=None)
    batch = replace(batch, old=token_logps(logits, batch).detach())
    plain = build_objective(GRPOConfig()).token_weights(batch.old, batch)
    simko = build_objective(config).token_weights(target_logps(logits, batch).detach(), batch)
    wrong = batch.advantage < 0
    factor = (simko[:, 0] / plain)[wrong]
    assert set(factor.round(decimals=9).tolist()) == {1.0, 1.5}
    assert bool((factor[~likeliest[wrong]] == 1).all())
    assert bool((simko[wrong][:, 1:] == 0).all())


def test_without_a_share_or_a_penalty_it_is_grpo():
    batch, logits = batch_of()
    plain, same = GRPOConfig(kl=0.1), SimKOConfig(kl=0.1, share=0.0, penalty=1.0)
    torch.testing.assert_close(
        build_objective(same).loss(target_logps(logits, batch), batch),
        build_objective(plain).loss(token_logps(logits, batch), batch),
        rtol=1e-12,
        atol=0,
    )


def test_a_batch_with_other_ranks_is_refused():
    objective = build_objective(SimKOConfig(ranks=2))
    batch, logits = batch_of()
    with pytest.raises(
        ConfigError,
        match=r"objective\.ranks = 2: the batch has 3 likeliest .*; sample with this many",
    ):
        objective.loss(target_logps(logits, batch), batch)
    with pytest.raises(ConfigError, match="0 likeliest"):
        objective.loss(token_logps(logits, batch)[:, None], replace(batch, top=None))
