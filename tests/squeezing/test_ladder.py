"""The ladder of forecasts: each rung against the step that it pictures."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import GPTJConfig, GPTJForCausalLM

from dynolab.forces import PolicyFunction, split_step
from dynolab.forces.function.rules import at_head
from dynolab.forces.function.views import View
from dynolab.forces.step.split import record_batch
from dynolab.objectives import DPOConfig, GRPOConfig, SFTConfig, build_objective, force, read_logps
from dynolab.objectives.grpo import SimKOConfig
from dynolab.squeezing.forecast import moved_by_head
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
MOMENTUM = SGD.model_copy(update={"momentum": 0.9, "weight_decay": 0.1})
RUNGS = ["logits", "weights", "batch", "head", "own_token"]


def step_on(model, objective, *examples, optimizer=SGD):
    config = TrainConfig(
        objective=objective, optimizer=optimizer, engine={"kind": "plain", "ranks": 1}
    )
    return train_steps(model, config, with_reference(model, examples), steps=1).records[0]


def seen(record, policy, number=0):
    return dict(pictures(record, policy, split_step(record, policy).update, number))


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
    here, objective = case("gpt_neox"), build_objective(config)
    start, step = here.policy.weights, here.descent(objective, 0.7)
    after = {name: w + 1e-4 * step[name] for name, w in start.items()}
    facts = StepFacts(
        step=0, learning_rate=1e-4, grad_norm=1.0, clip_factor=1.0, objective=config, optimizer=SGD
    )
    record = StepRecord(facts, tuple(here.updating(objective, 0.7)), start, after, {})
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
