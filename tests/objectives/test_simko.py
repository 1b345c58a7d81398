"""SimKO: a dense objective whose force reaches the likeliest tokens too."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dynolab.errors import ConfigError
from dynolab.likelihood.token_logps import target_logps, token_logps
from dynolab.objectives import GRPOConfig, SimKOConfig, build_objective, force, read_logps
from tests.objectives.sampled import GROUPS, RANKS, VOCABULARY, batch_of

CONFIGS = [
    SimKOConfig(),
    SimKOConfig(share=0.4, gate_quantile=0.3, aggregation="grpo", kl=0.2),
    SimKOConfig(share=1.0, gate_quantile=0.0, penalty=2.0, aggregation="dr_grpo", max_tokens=7),
]


def label(config: SimKOConfig) -> str:
    return f"{config.aggregation}-{config.share}"


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("drift", [0.0, 0.3, 5.0])
@pytest.mark.parametrize("config", CONFIGS, ids=label)
def test_the_force_is_the_loss_s_gradient_by_the_logits(config, drift, temperature):
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


@pytest.mark.parametrize("config", CONFIGS, ids=label)
def test_micro_batches_of_groups_add_up(config):
    objective = build_objective(config)
    batch, logits = batch_of()
    whole = objective.loss(target_logps(logits, batch), batch)
    parts = []
    for size in (GROUPS[:1], GROUPS[1:3], GROUPS[3:]):
        part, part_logits = batch_of(size)
        parts.append(objective.loss(target_logps(part_logits, part), part))
    torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=0)


def test_a_batch_with_other_ranks_is_refused():
    objective = build_objective(SimKOConfig(ranks=2))
    batch, logits = batch_of()
    with pytest.raises(ConfigError, match="3 likeliest"):
        objective.loss(target_logps(logits, batch), batch)
    with pytest.raises(ConfigError, match="0 likeliest"):
        objective.loss(token_logps(logits, batch)[:, None], replace(batch, top=None))
