"""Forecasts of real steps: the rule's, where it is exact, and each rung of the ladder."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import Tensor
from transformers import GPTJConfig, GPTJForCausalLM

from dynolab.data.batches import collate
from dynolab.forces import PolicyFunction, breakdown, record_batch, split_step
from dynolab.forces.function.rules import at_head
from dynolab.forces.function.views import View
from dynolab.objectives import (
    SFT,
    DPOConfig,
    GRPOConfig,
    SFTConfig,
    build_objective,
    force,
    read_logps,
)
from dynolab.objectives.grpo import SimKOConfig
from dynolab.squeezing import forecast
from dynolab.squeezing.forecast import TOP, forecasts, moved_by_head
from dynolab.squeezing.ladder import ladder, pictures
from dynolab.training.config import OptimizerConfig, TrainConfig
from dynolab.training.step_record import StepFacts, StepRecord
from tests.forces.families import case
from tests.forces.small_models import (
    VOCABULARY,
    llama,
    neox,
    pair,
    recorded,
    relative,
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


def test_the_rule_is_exact_where_one_token_pushes_through_the_head_alone() -> None:
    """A pair whose rejected answer has one token: no other position is pushed down."""
    record = step_on(neox(), DPOConfig(), pair(3, prompt=4, chosen=3, rejected=1))
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
    p, pushed = logp.exp(), batch.token.unsqueeze(-1)
    # Of a small push on y those with p_i + p_y > Σ p² rise, but for y itself.
    rise = p + p.gather(-1, pushed) > p.square().sum(-1, keepdim=True)
    assert rejected.foretold == rejected.rose == int(rise.scatter(-1, pushed, False).sum())


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

    record = step_at(here, config, temperature, rate=1e-3)
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
        len(part.realised) for _, part in sorted(parts.items())
    ]


MOMENTUM = SGD.model_copy(update={"momentum": 0.9, "weight_decay": 0.1})
RUNGS = ["logits", "weights", "batch", "head", "own_token"]


def step_on(model, objective, *examples, optimizer=SGD):
    config = TrainConfig(
        objective=objective, optimizer=optimizer, engine={"kind": "plain", "ranks": 1}
    )
    return train_steps(model, config, with_reference(model, examples), steps=1).records[0]


def seen(record, policy, number=0):
    return dict(pictures(record, policy, split_step(record, policy).update, number))


def step_at(here, config, temperature, *, rate):
    """A record of a step of descent on the case's examples."""
    objective, start = build_objective(config), here.policy.weights
    step = here.descent(objective, temperature)
    facts = StepFacts(
        step=0, learning_rate=rate, grad_norm=1.0, clip_factor=1.0, objective=config, optimizer=SGD
    )
    after = {name: w + rate * step[name] for name, w in start.items()}
    return StepRecord(facts, tuple(here.updating(objective, temperature)), start, after, {})


def test_one_example_is_the_whole_batch():
    model = neox()
    record = step_on(model, DPOConfig(), pair(3))
    for answer in seen(record, PolicyFunction(model, torch.float64)).values():
        assert relative(answer.predicted["weights"], answer.predicted["batch"]) < 1e-6


def test_one_token_pushes_alone():
    """SFT on an answer of one token: its own position is all there is."""
    model = neox()
    record = step_on(model, SFTConfig(), pair(3, chosen=1))
    (answer,) = seen(record, PolicyFunction(model, torch.float64)).values()
    assert len(answer.label) == 1
    assert relative(answer.predicted["own_token"], answer.predicted["weights"]) < 1e-9
    own, rule = answer.predicted["head"][0], answer.predicted["logits"][0]
    cosine = torch.cosine_similarity(own, rule, dim=0)
    assert float(cosine) == pytest.approx(1)  # the head's own position is cI


@pytest.mark.parametrize("build", [neox, llama])
def test_the_head_at_fixed_features_is_its_step_alone(build):
    model = build(dtype=torch.float64)
    record = step_on(model, DPOConfig(), pair(3))
    policy = PolicyFunction(model, torch.float64)
    batch = record_batch(record, policy, [0])
    objective = build_objective(record.facts.objective)
    logits = policy.logits(policy.cast(record.before), batch)
    features = []
    with at_head(policy, lambda h, output: features.append(h.detach()) or output):
        policy.logits(policy.cast(record.before), batch)
    rates = objective.token_weights(read_logps(objective, logits, batch), batch)
    G = force(rates, logits, batch)
    (h,) = features
    # The unconstrained-features picture: −η Σ_l (h_m·h_l) A_m G_l.
    scale = record.facts.learning_rate * record.facts.clip_factor
    expected = View.vocabulary().changes(logits, -scale * (h @ h.T) @ G)
    for side, answer in seen(record, policy).items():
        rows = (batch.token_side == side).nonzero()[:, 0]
        if len(rows) == len(answer.label):
            assert relative(answer.predicted["head"], expected[rows]) < 1e-9


def test_a_heads_bias_moves_with_its_weight():
    """The head's own step of a whole example is linear in the logits: it needs no derivative."""
    torch.manual_seed(0)
    small = {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 32}
    model = GPTJForCausalLM(GPTJConfig(**small, vocab_size=VOCABULARY, initializer_range=0.15))
    record = step_on(model.double().eval(), DPOConfig(), pair(3))
    policy = PolicyFunction(model, torch.float64)
    batch = record_batch(record, policy, [0])
    start = policy.logits(policy.cast(record.before), batch)
    moved = moved_by_head(policy, record.before, record.after, batch) - start
    expected = View.vocabulary().changes(start, moved)
    answers = seen(record, policy)
    for side, answer in answers.items():
        rows = (batch.token_side == side).nonzero()[:, 0]
        if len(rows) == len(answer.label):
            assert relative(answer.predicted["head"], expected[rows]) < 1e-6
    assert min(len(answer.label) for answer in answers.values()) == 4


def test_a_shared_table_has_a_rung_of_its_own():
    tied, untied = llama(dtype=torch.float64), neox()
    for model, expected in ((tied, {*RUNGS, "table"}), (untied, {*RUNGS})):
        rows = ladder(recorded(model, SGD), PolicyFunction(model, torch.float64), training="dpo")
        assert {row["rung"] for row in rows} == expected
        assert {row["side"] for row in rows} == {"chosen", "rejected"}


@pytest.mark.parametrize("optimizer", [MOMENTUM, OptimizerConfig(learning_rate=1e-6)])
def test_the_last_rung_predicts_a_small_step(optimizer):
    model = neox()
    record = recorded(model, optimizer, count=3)
    rows = ladder(record, PolicyFunction(model, torch.float64), training="dpo")
    last = [row for row in rows if row["rung"] == "batch"]
    assert min(row["auc"] for row in last) > 0.999
    for row in last:
        assert row["flow"] == pytest.approx(row["flow_measured"], rel=0.05)
        assert row["positions"] in (11, 12)  # four an answer, where it has as many
    first = [row for row in rows if row["rung"] == "logits"]
    assert max(row["auc"] for row in first) < min(row["auc"] for row in last)


@pytest.mark.parametrize("config", [GRPOConfig(kl=0.05), SimKOConfig(share=0.4)], ids=repr)
def test_a_loss_at_a_temperature_is_foretold_at_temperature_one(config):
    here = case("gpt_neox")
    record = step_at(here, config, 0.7, rate=1e-4)
    for number in range(len(record.examples)):
        for answer in seen(record, here.policy, number).values():
            assert relative(answer.predicted["batch"], answer.measured) < 1e-2


def test_positions_that_were_not_trained_on_are_left_out():
    model = neox()
    record = recorded(model, SGD, SFTConfig())
    rows = ladder(record, PolicyFunction(model, torch.float64), training="sft")
    assert {row["side"] for row in rows} == {"chosen"}
    still = replace(record, after=record.before)
    (batch,) = [
        row
        for row in ladder(still, PolicyFunction(model, torch.float64), training="sft")
        if row["rung"] == "batch"
    ]
    assert batch["flow"] == batch["flow_measured"] == 0
