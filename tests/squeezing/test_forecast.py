"""Forecasts of real steps: exact where the rule's picture is, and the last layer's part of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dynolab.data.batches import collate
from dynolab.forces import PolicyFunction, breakdown, split_step
from dynolab.objectives import SFT, DPOConfig, SFTConfig
from dynolab.objectives.simko import SimKOConfig
from dynolab.squeezing import forecast
from dynolab.squeezing.forecast import TOP, forecasts
from dynolab.squeezing.last_layer import moved_by_head
from dynolab.squeezing.rule import rises
from dynolab.training.config import OptimizerConfig, TrainConfig
from dynolab.training.record import StepRecord
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
    after = {name: w + change[name].to(w.dtype) if name in names else w
             for name, w in record.before.items()}  # fmt: skip
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
    pushed = split_step(record, policy).from_rejected
    (rejected,) = [one for one in forecasts(moved_alone(record, pushed, HEAD), policy, training="x")
                   if one.side == "rejected"]  # fmt: skip
    assert (rejected.positions, rejected.tokens) == (1, VOCABULARY - 1)
    assert rejected.auc == rejected.auc_top == rejected.auc_last_layer == 1.0
    assert rejected.right == rejected.tokens
    assert rejected.foretold == rejected.rose
    assert rejected.explained == pytest.approx(1, abs=1e-9)
    assert rejected.cosine == pytest.approx(1)
    assert rejected.agree == 1.0
    sequence = record.examples[0].rejected
    assert sequence is not None
    batch = collate([sequence], 0)
    logp = policy.logits(policy.cast(record.before), batch).log_softmax(-1)
    assert rejected.foretold == int(rises(logp, batch.token).sum())


def test_a_head_that_stands_still_explains_nothing() -> None:
    record = recorded(neox(), SGD, steps=1)
    change = {name: after - record.before[name] for name, after in record.after.items()}
    names = [name for name in change if name != HEAD]
    found = forecasts(moved_alone(record, change, *names), policy_of(record), training="dpo")
    assert [one.side for one in found] == ["chosen", "rejected"]
    for one in found:
        assert one.explained == 0
        assert one.cosine != one.cosine
        assert (one.training, one.step) == ("dpo", 0)


def test_the_last_layer_is_the_heads_part_of_the_force_map() -> None:
    record = recorded(neox(), SGD, SFTConfig(), steps=1)
    policy = policy_of(record)
    answers = [one.chosen for one in record.examples]
    batch = collate(answers, 0)
    before = policy.logits(policy.cast(record.before), batch).log_softmax(-1)
    moved = moved_by_head(policy, record.before, record.after, batch).log_softmax(-1)
    own = (moved - before).gather(1, batch.token[:, None])[:, 0]
    parts = breakdown(
        policy, answers, record.examples, SFT(SFTConfig()), at=record.before,
        update=record.facts.learning_rate * record.facts.clip_factor,
    )  # fmt: skip
    torch.testing.assert_close(own, parts.head.sum(1), rtol=1e-3, atol=1e-9)


def test_micro_batches_and_thinned_positions_tell_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = recorded(neox(), SGD, count=4, steps=1)
    policy = policy_of(record)
    whole = forecasts(record, policy, training="dpo")
    small = forecasts(record, policy, training="dpo", batch_tokens=20)
    for one, other in zip(whole, small, strict=True):
        assert (one.tokens, one.rose, one.right) == (other.tokens, other.rose, other.right)
        assert one.auc == pytest.approx(other.auc, abs=1e-9)
        assert one.positions * (VOCABULARY - 1) == one.tokens
        assert one.positions > 0
    monkeypatch.setattr(forecast, "MOST", 20 * VOCABULARY)
    thinned = forecasts(record, policy, training="dpo")
    assert all(one.positions * 2 <= other.positions + 1
               for one, other in zip(thinned, whole, strict=True))  # fmt: skip
    assert TOP < VOCABULARY


def test_objectives_that_push_other_tokens_have_no_forecast() -> None:
    record = recorded(neox(), SGD, DPOConfig(), steps=1)
    dense = record.facts.model_copy(update={"objective": SimKOConfig(max_tokens=8)})
    assert forecasts(replace(record, facts=dense), policy_of(record), training="simko") == []
