"""The weights of every objective's tokens against autograd of the loss that trains, and what it
reports. Forces on the logits: `../forces/test_acceptance.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch, collate_examples, count_totals
from dynolab.data.encode import Encoded, EncodedExample
from dynolab.likelihood.token_logps import token_logps
from dynolab.objectives import (
    DPOConfig,
    HingeConfig,
    IPOConfig,
    RobustDPOConfig,
    SFTConfig,
    SFTExtendedConfig,
    SLiCConfig,
    SPPOConfig,
    build_objective,
)
from dynolab.objectives.base import force
from dynolab.objectives.pairs import Answers, PairObjective
from tests.objectives.registered import ON_ROWS

BY_NAME = ON_ROWS | {
    "sft-token-mean": SFTConfig(normalise="token_mean"),
    "sft-extended-token-mean": SFTExtendedConfig(normalise="token_mean"),
    "dpo-steep": DPOConfig(beta=2.0),
    "dpo-smoothed": DPOConfig(beta=0.5, label_smoothing=0.2),
    "dpo-dosed": DPOConfig(beta=0.5, negative_dose=0.3),
    "dpo-positive-only": DPOConfig(beta=0.5, negative_dose=0.0),
    "dpo-robust": RobustDPOConfig(beta=0.5, label_smoothing=0.2),
    "ipo-sum": IPOConfig(beta=0.2),
    "ipo-mean": IPOConfig(beta=0.2, normalise="mean"),
    "slic-live": SLiCConfig(margin=2.0, sft_weight=0.3),
    "slic-without-sft": SLiCConfig(margin=3.0, sft_weight=0.0),
    "hinge-live": HingeConfig(beta=0.3),
    "sppo-flat": SPPOConfig(beta=0.05),
    "sppo-soft": SPPOConfig(beta=0.2, labels="soft"),
}
NAMES, CONFIGS = list(BY_NAME), list(BY_NAME.values())
VOCABULARY = 20


def example(number: int) -> EncodedExample:
    generator = torch.Generator().manual_seed(number)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, VOCABULARY, (count,), generator=generator).tolist())

    prompt = ids(1 + number % 3)
    chosen, rejected = prompt + ids(1 + number % 4), prompt + ids(2 + number % 3)
    return EncodedExample(
        str(number),
        Encoded(chosen, len(prompt)),
        Encoded(rejected, len(prompt)),
        wins=(0.95 - number / 20, 0.4 - number / 20),
    )


EXAMPLES = [example(number) for number in range(6)]


def reference_of(one: EncodedExample, side: int) -> Tensor:
    encoded = one.chosen if side == CHOSEN else one.rejected
    assert encoded is not None
    generator = torch.Generator().manual_seed(100 + 2 * int(one.id) + side)
    return -3 * torch.rand(encoded.response_length, generator=generator, dtype=torch.float64)


def batch_of(config, examples: Sequence[EncodedExample] = EXAMPLES) -> TokenBatch:
    sides = build_objective(config).sides
    batch = collate_examples(examples, 0, sides, count_totals(EXAMPLES, sides))
    parts = [reference_of(example, side) for example in examples for side in sides]
    return replace(batch, reference=torch.cat(parts))


def random_logits(batch: TokenBatch, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    shape = (len(batch.token), VOCABULARY)
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).requires_grad_()


@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_token_weights_are_minus_the_loss_s_gradient(config):
    objective, batch = build_objective(config), batch_of(config)
    logps = token_logps(random_logits(batch), batch).detach().requires_grad_()
    (slope,) = torch.autograd.grad(objective.loss(logps, batch), logps)
    with torch.no_grad():
        weights = objective.token_weights(logps, batch)
    torch.testing.assert_close(weights, -slope)
    assert not weights.requires_grad
    # They can be differentiated again, by reverse and by forward mode.
    size = objective.token_weights(logps, batch).square().sum() + 0 * logps.sum()
    (again,) = torch.autograd.grad(size, logps)
    _, along = torch.func.jvp(
        lambda logps: objective.token_weights(logps, batch).square().sum(),
        (logps.detach(),),
        (torch.ones_like(logps),),
    )
    torch.testing.assert_close(again.sum(), along)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("lead", [16.0, 20.0, 40.0])
def test_a_nearly_certain_token_still_pushes_the_others_down(lead: float, dtype: torch.dtype):
    """1 − π is below the spacing of numbers at one here; both of its forms must keep precision."""
    batch = batch_of(SFTConfig(), EXAMPLES[:1])
    logits = torch.zeros(len(batch.token), VOCABULARY, dtype=dtype)
    logits.scatter_(-1, batch.token[:, None], lead)
    pushed = force(torch.ones(len(batch.token), dtype=dtype), logits, batch)
    own = pushed.gather(-1, batch.token[:, None]).squeeze(-1)
    others = pushed.scatter(-1, batch.token[:, None], 0.0).sum(-1)
    exact = (VOCABULARY - 1) / (torch.tensor(lead, dtype=torch.float64).exp() + VOCABULARY - 1)
    outside = exact.to(dtype).expand(len(own))
    precision = 1e-6 if dtype is torch.float32 else 1e-12
    torch.testing.assert_close(others, outside, rtol=precision, atol=0)
    torch.testing.assert_close(own, -outside, rtol=precision, atol=0)


PAIRED = [config for config in CONFIGS if isinstance(build_objective(config), PairObjective)]
WINS = (0.8, 0.3)


def one_token(value: Tensor, wins: float) -> Answers:
    return Answers(
        value, value, torch.ones_like(value, dtype=torch.long), torch.full_like(value, wins)
    )


@pytest.mark.parametrize("config", PAIRED, ids=lambda config: repr(config))
def test_a_batch_reports_its_pairs_weights_and_rewards(config):
    objective, batch = build_objective(config), batch_of(config)
    logps = token_logps(random_logits(batch), batch)
    named = objective.metrics(logps, batch)
    assert all(not value.requires_grad for value in named.values())
    rates = objective.token_weights(logps.detach(), batch)
    lengths = torch.bincount(batch.sequence) if objective.averages else torch.ones(12).double()
    first = torch.cat([torch.tensor([0]), torch.bincount(batch.sequence).cumsum(0)[:-1]])
    weight = rates[first] * lengths * len(EXAMPLES)
    for side, name, sign in ((CHOSEN, "", 1), (REJECTED, "_rejected", -1)):
        torch.testing.assert_close(
            named[f"train/dynamic_learning_rate{name}"], sign * weight[batch.side == side].sum()
        )
    torch.testing.assert_close(
        named["train/margin"], named["train/reward_chosen"] - named["train/reward_rejected"]
    )


def test_smoothed_dpo_turns_its_force_where_the_label_is_surer_than_it_may_be():
    objective = build_objective(DPOConfig(beta=1.0, label_smoothing=0.25))
    turn = torch.tensor(3.0, dtype=torch.float64).log()
    margins = torch.stack([turn - 0.1, turn, turn + 0.1]).requires_grad_()
    sides = one_token(margins, 1.0), one_token(torch.zeros_like(margins), 0.0)
    (slope,) = torch.autograd.grad(objective.pair_loss(*sides).sum(), margins)
    assert slope[0] < 0 < slope[2]
    assert abs(float(slope[1])) < 1e-15


@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_a_row_s_weight_multiplies_what_it_pushes(config):
    weights = [None, 0.0, 2.0, 0.5, None, 1.0]
    weighted = [replace(one, weight=w) for one, w in zip(EXAMPLES, weights, strict=True)]
    objective, plain, batch = build_objective(config), batch_of(config), batch_of(config, weighted)
    logps = token_logps(random_logits(batch), batch).detach()
    factor = torch.tensor([1.0 if w is None else w for w in weights], dtype=torch.float64)
    by_token = factor[batch.example][batch.sequence]
    whole = objective.token_weights(logps, plain)
    torch.testing.assert_close(objective.token_weights(logps, batch), by_token * whole)
