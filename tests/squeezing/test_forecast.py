"""Forecasts of real steps: exact where the rule's picture is, and the last layer's part of them."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import Tensor

from dynolab.data.batches import collate
from dynolab.forces import PolicyFunction, breakdown, record_batch, split_step
from dynolab.objectives import (
    SFT,
    DPOConfig,
    GRPOConfig,
    SFTConfig,
    build_objective,
    read_logps,
)
from dynolab.objectives.grpo import SimKOConfig
from dynolab.squeezing import forecast
from dynolab.squeezing.forecast import TOP, forecasts, moved_by_head
from dynolab.squeezing.softmax import rises
from dynolab.training.config import OptimizerConfig, TrainConfig
from dynolab.training.step_record import StepFacts, StepRecord
from tests.forces.families import case
from tests.forces.small_models import (
    VOCABULARY,
    neox,
    pair,
    recorded,
    train_steps,
    with_reference,
)

SGD = OptimizerConfig(name="sgd", learning_rate=1e-4)
HEAD = "lm_head.weight"


def policy_of(record: StepRecord) -> PolicyFunction:
    return PolicyFunction(neox(), torch.float64)


def moved_alone(record: StepRecord, change: dict[str, Tensor], *names: str) -> StepRecord:
    """The record of a step that moved these parameters and no other."""
    after = {
        name: w + change[name].to(w.dtype) if name in names else w
        for name, w in record.before.items()
    }
    return replace(record, after=after)


def one_token_step() -> StepRecord:
    """A pair whose rejected answer has one token: no other position is pushed down."""
    model = neox()
    examples = with_reference(model, [pair(3, prompt=4, chosen=3, rejected=1)])
    config = TrainConfig.model_validate(
        {"objective": {"name": "dpo"}, "optimizer": SGD, "engine": {"kind": "plain", "ranks": 1}}
    )
    return train_steps(model, config, examples, steps=1).records[0]


def test_the_rule_is_exact_where_one_token_pushes_through_the_head_alone() -> None:
    record = one_token_step()
    policy = policy_of(record)
    alone = moved_alone(record, split_step(record, policy).from_rejected, HEAD)
    (rejected,) = pd.DataFrame(forecasts(alone, policy, training="x")).iloc[1:].itertuples()
    assert rejected.side == "rejected"
    assert (rejected.positions, rejected.tokens) == (1, VOCABULARY - 1)
    assert rejected.auc == rejected.auc_top == rejected.auc_last_layer == 1.0
    assert (rejected.right, rejected.agree) == (rejected.tokens, 1.0)
    assert rejected.explained == pytest.approx(1, abs=1e-9)
    assert rejected.cosine == pytest.approx(1)
    batch = collate([record.examples[0].encoded().rejected], 0)
    logp = policy.logits(policy.cast(record.before), batch).log_softmax(-1)
    assert rejected.foretold == rejected.rose == int(rises(logp, batch.token).sum())


def test_a_head_that_stands_still_explains_nothing() -> None:
    record = recorded(neox(), SGD, steps=1)
    change = {name: after - record.before[name] for name, after in record.after.items()}
    names = [name for name in change if name != HEAD]
    found = forecasts(moved_alone(record, change, *names), policy_of(record), training="dpo")
    assert [one["side"] for one in found] == ["chosen", "rejected"]
    for one in found:
        assert one["explained"] == 0
        assert one["cosine"] != one["cosine"]
        assert (one["training"], one["step"]) == ("dpo", 0)


def test_the_last_layer_is_the_heads_part_of_the_force_map() -> None:
    record = recorded(neox(), SGD, SFTConfig(), steps=1)
    policy = policy_of(record)
    answers = [one.chosen for one in record.examples]
    batch = collate(answers, 0)
    before = policy.logits(policy.cast(record.before), batch).log_softmax(-1)
    moved = moved_by_head(policy, record.before, record.after, batch).log_softmax(-1)
    own = (moved - before).gather(1, batch.token[:, None])[:, 0]
    parts = breakdown(
        policy,
        answers,
        record.examples,
        SFT(SFTConfig()),
        at=record.before,
        update=record.facts.learning_rate * record.facts.clip_factor,
    )
    torch.testing.assert_close(own, parts.head.sum(1), rtol=1e-3, atol=1e-9)


def test_micro_batches_and_thinned_positions_tell_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = recorded(neox(), SGD, count=4, steps=1)
    policy = policy_of(record)
    whole = forecasts(record, policy, training="dpo")
    small = forecasts(record, policy, training="dpo", batch_tokens=20)
    for one, other in zip(whole, small, strict=True):
        assert [one[name] == other[name] for name in ("tokens", "rose", "right")] == [True] * 3
        assert one["auc"] == pytest.approx(other["auc"], abs=1e-9)
        assert one["positions"] * (VOCABULARY - 1) == one["tokens"] > 0
    monkeypatch.setattr(forecast, "MOST", 20 * VOCABULARY)
    thinned = forecasts(record, policy, training="dpo")
    assert all(
        one["positions"] * 2 <= other["positions"] + 1
        for one, other in zip(thinned, whole, strict=True)
    )
    assert TOP < VOCABULARY


@pytest.mark.parametrize(
    ("config", "temperature"),
    [(DPOConfig(), 1.0), (GRPOConfig(kl=0.05), 0.7), (SimKOConfig(share=0.4), 0.7)],
    ids=lambda one: repr(one),
)
def test_a_forecast_is_what_a_small_step_on_the_logits_does(config, temperature) -> None:
    """Whatever tokens a loss pushes, and at which temperature: log π at T = 1 is foretold."""
    here, objective = case("gpt_neox"), build_objective(config)
    batch = here.batch(objective, temperature)
    logits = here.policy.logits({}, batch).detach().requires_grad_()
    loss = objective.loss(read_logps(objective, logits, batch), batch)
    (G,) = torch.autograd.grad(loss, logits)
    h = 1e-4 / float(G.abs().max())
    forth, back = ((logits.detach() - s * h * G).log_softmax(-1) for s in (1, -1))
    truth = (forth - back) / (2 * h)

    start, step = here.policy.weights, here.descent(objective, temperature)
    facts = StepFacts(
        step=0, learning_rate=1.0, grad_norm=1.0, clip_factor=1.0, objective=config, optimizer=SGD
    )
    after = {name: w + 1e-3 * step[name] for name, w in start.items()}
    record = StepRecord(facts, tuple(here.updating(objective, temperature)), start, after, {})
    own = record_batch(record, here.policy, range(len(record.examples)))
    parts = dict(forecast._forecast_positions(record, here.policy, own, 1))
    others = torch.ones_like(truth, dtype=torch.bool).scatter_(1, batch.token[:, None], False)
    for side, part in parts.items():
        pushed = (batch.token_side == side) & G.any(-1)
        wanted = truth[pushed][others[pushed]].view(part.forecast.shape)
        torch.testing.assert_close(part.forecast, wanted, rtol=1e-6, atol=1e-9)
    rows = forecasts(record, here.policy, training="x")
    assert [one["side"] for one in rows] == ["chosen", "rejected"]
    assert [one["positions"] for one in rows] == [
        len(part.own) for _, part in sorted(parts.items())
    ]
