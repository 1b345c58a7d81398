"""Losses and reported numbers against plain arithmetic, response by response."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch

from dynolab.data.batches import CHOSEN, REJECTED
from dynolab.likelihood.token_logps import target_logps, token_logps
from dynolab.objectives import (
    DPOConfig,
    GRPOConfig,
    HingeConfig,
    IPOConfig,
    RobustDPOConfig,
    SFTConfig,
    SFTExtendedConfig,
    SimKOConfig,
    SimPOConfig,
    SLiCConfig,
    SPINConfig,
    SPPOConfig,
    build_objective,
)
from dynolab.objectives.registry import PAIR_OBJECTIVES
from tests.objectives.sampled import batch_of
from tests.objectives.test_forces import EXAMPLES, batch_of as pairs_of, random_logits


class PairLoss(NamedTuple):
    """A loss on pairs in plain arithmetic.

    `formula` is φ of the chosen and of the rejected answer's score: its log-ratio to the reference,
    or log π without one, by token where it is `averaged`. A score times `scale` is the reward.
    """

    config: Any
    formula: Callable[[float, float], float]
    scale: float
    reference: bool = True
    averaged: bool = False


def logistic(margin: float) -> float:
    return math.log(1 + math.exp(-margin))


def dpo(chosen: float, rejected: float) -> float:
    return logistic(0.3 * (chosen - rejected))


def smoothed(chosen: float, rejected: float) -> float:
    return 0.8 * dpo(chosen, rejected) + 0.2 * dpo(rejected, chosen)


def robust(chosen: float, rejected: float) -> float:
    return (0.8 * dpo(chosen, rejected) - 0.2 * dpo(rejected, chosen)) / 0.6


def ipo(chosen: float, rejected: float) -> float:
    return (chosen - rejected - 2.5) ** 2


def slic(chosen: float, rejected: float) -> float:
    return max(0.0, 2.0 - chosen + rejected) - 0.3 * chosen


def hinge(chosen: float, rejected: float) -> float:
    return max(0.0, 1 - 0.3 * (chosen - rejected))


def simpo(chosen: float, rejected: float) -> float:
    return logistic(1.5 * (chosen - rejected) - 0.4)


def sppo(chosen: float, rejected: float) -> float:
    return (chosen - 10) ** 2 + (rejected + 10) ** 2


PAIR_LOSSES = (
    PairLoss(DPOConfig(beta=0.3), dpo, 0.3),
    PairLoss(DPOConfig(beta=0.3, label_smoothing=0.2), smoothed, 0.3),
    PairLoss(DPOConfig(beta=0.3, negative_dose=0.4), dpo, 0.3),
    PairLoss(RobustDPOConfig(beta=0.3, label_smoothing=0.2), robust, 0.3),
    PairLoss(IPOConfig(beta=0.2), ipo, 0.2),
    PairLoss(IPOConfig(beta=0.2, normalise="mean"), ipo, 0.2, averaged=True),
    PairLoss(SLiCConfig(margin=2.0, sft_weight=0.3), slic, 1.0, reference=False),
    PairLoss(HingeConfig(beta=0.3), hinge, 0.3),
    PairLoss(SimPOConfig(beta=1.5, margin=0.4), simpo, 1.5, reference=False, averaged=True),
    PairLoss(SPPOConfig(beta=0.05), sppo, 0.05),
    PairLoss(SPINConfig(beta=0.3), dpo, 0.3),
)
AGAINST_TRL = {"cpo", "orpo"}
"""Losses whose formula is that of TRL's code, in `test_trl_pair_losses.py`."""


def test_every_loss_on_pairs_has_its_formula_here() -> None:
    compared = {loss.config.name for loss in PAIR_LOSSES} | AGAINST_TRL
    assert compared >= PAIR_OBJECTIVES - {"custom"}


@pytest.mark.parametrize("pair_loss", PAIR_LOSSES, ids=lambda loss: repr(loss.config))
def test_a_loss_on_pairs_and_what_it_reports_are_sums_over_the_pairs(pair_loss: PairLoss) -> None:
    scale = pair_loss.scale
    objective, batch = build_objective(pair_loss.config), pairs_of(pair_loss.config)
    logps = token_logps(random_logits(batch), batch).detach()
    losses, rewards, totals = [], [], []
    for pair in range(len(EXAMPLES)):
        scores, sums = {}, {}
        for side in (CHOSEN, REJECTED):
            answer = torch.nonzero((batch.example == pair) & (batch.side == side))
            tokens = batch.sequence == int(answer)
            sums[side] = float(logps[tokens].sum())
            reference = float(batch.reference[tokens].sum()) if pair_loss.reference else 0.0
            length = int(tokens.sum()) if pair_loss.averaged else 1
            scores[side] = (sums[side] - reference) / length
        losses.append(pair_loss.formula(scores[CHOSEN], scores[REJECTED]))
        rewards.append((scale * scores[CHOSEN], scale * scores[REJECTED]))
        totals.append((sums[CHOSEN], sums[REJECTED]))
    assert float(objective.loss(logps, batch)) == pytest.approx(sum(losses) / len(EXAMPLES))
    reported = {name: float(value) for name, value in objective.metrics(logps, batch).items()}
    assert reported == {
        "train/margin": pytest.approx(sum(chosen - rejected for chosen, rejected in rewards)),
        "train/accuracy": sum(chosen > rejected for chosen, rejected in rewards),
        "train/reward_chosen": pytest.approx(sum(chosen for chosen, _ in rewards)),
        "train/reward_rejected": pytest.approx(sum(rejected for _, rejected in rewards)),
        "train/chosen_logp": pytest.approx(sum(chosen for chosen, _ in totals)),
        "train/rejected_logp": pytest.approx(sum(rejected for _, rejected in totals)),
        "train/dynamic_learning_rate": reported["train/dynamic_learning_rate"],
        "train/dynamic_learning_rate_rejected": reported["train/dynamic_learning_rate_rejected"],
    }


def test_equal_rewards_are_not_counted_as_accurate():
    objective = build_objective(DPOConfig())
    batch = pairs_of(DPOConfig())
    assert float(objective.metrics(batch.reference, batch)["train/accuracy"]) == 0


@pytest.mark.parametrize("normalise", ["sequence_sum", "token_mean"])
def test_the_likelihood_is_a_mean_over_answers_or_over_tokens(normalise):
    for config in (SFTConfig(normalise=normalise), SFTExtendedConfig(normalise=normalise)):
        objective, batch = build_objective(config), pairs_of(config)
        logps = token_logps(random_logits(batch), batch).detach()
        count = len(logps) if normalise == "token_mean" else len(batch.side)
        assert float(objective.loss(logps, batch)) == pytest.approx(-float(logps.sum()) / count)


def test_the_likelihood_of_answers_is_reported_side_by_side():
    for config in (SFTConfig(), SFTExtendedConfig()):
        objective, batch = build_objective(config), pairs_of(config)
        logps = token_logps(random_logits(batch), batch)
        reported = objective.metrics(logps, batch)
        assert all(not value.requires_grad for value in reported.values())
        expected = {"train/chosen_logp": CHOSEN, "train/rejected_logp": REJECTED}
        assert {name: float(value) for name, value in reported.items()} == pytest.approx(
            {
                name: float(logps[batch.token_side == side].sum().detach())
                for name, side in expected.items()
                if side in objective.sides
            }
        )


@pytest.mark.parametrize("config", [GRPOConfig(kl=0.1), SimKOConfig(kl=0.1, share=0.3)], ids=repr)
def test_a_policy_gradient_reports_means_over_the_step_s_tokens(config):
    objective = build_objective(config)
    batch, logits = batch_of()
    batch = replace(batch, advantage=batch.advantage * (batch.token % 5 > 0))
    logps = (target_logps if objective.dense else token_logps)(logits, batch).detach()
    own = logps[:, 0] if objective.dense else logps
    if objective.dense:
        ratio = objective._mixed(objective._ratios(logps, batch), objective._shared(batch))
    else:
        ratio = (own - batch.old).exp()
    clipped = kl = 0.0
    for r, push, gap in zip(ratio, batch.advantage, batch.reference - own, strict=True):
        clipped += float((push > 0 and r > 1.2) or (push < 0 and r < 0.8))
        kl += math.exp(gap) - float(gap) - 1
    per_token = {
        "train/ratio": float(ratio.sum()),
        "train/clip_fraction": clipped,
        "train/logp_per_token": float(own.sum()),
        "train/advantage_size": float(batch.advantage.abs().sum()),
        "train/kl": kl,
    }
    assert 0 < clipped < len(own) and (batch.advantage == 0).any()
    share = batch.totals.examples / batch.totals.tokens
    reported = {name: float(value) for name, value in objective.metrics(logps, batch).items()}
    assert reported == pytest.approx({name: share * total for name, total in per_token.items()})
    without = build_objective(type(config)()).metrics(logps, batch)
    assert set(without) == set(per_token) - {"train/kl"}
