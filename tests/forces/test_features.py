"""Forces on hidden features, what a step does to them, and both layer by layer."""

from __future__ import annotations

import math

import pytest
import torch

from dynolab.data.encode import Encoder
from dynolab.errors import ConfigError
from dynolab.forces import (
    PolicyFunction,
    consistency,
    feature_forces,
    feature_step,
    hidden_states,
    step_layers,
)
from dynolab.forces.function.rules import at_layers
from dynolab.forces.step.split import objective_batch, objective_logps, step_totals
from dynolab.objectives import GRPOConfig, SimKOConfig, build_objective
from dynolab.training.config import OptimizerConfig
from tests.benchmarks.models import build as other_family
from tests.forces.families import DPO_LOSS, ETA, FAMILIES, case, case_of
from tests.forces.lora import adapted
from tests.forces.small_models import encoded, neox, pairs, recorded, weights
from tests.forces.test_step_forces import PROBES, Numbers

BLOCKS = 2
OBSERVED = [encoded(1), pairs(1)[0].chosen]
REFERENCES = {
    pair.id: {
        "chosen_reference": [-3.0] * pair.chosen.response_length,
        "rejected_reference": [-3.5] * pair.rejected.response_length,
    }
    for pair in pairs(2)
}


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_layer_is_transformers_own_hidden_state(family):
    """Its last entry is the state after the final norm, so it is compared up to there."""
    policy = case(family).policy
    batch = policy.batch(OBSERVED)
    with torch.no_grad(), policy.differentiable():
        own = policy.model(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            output_hidden_states=True,
            use_cache=False,
        ).hidden_states
    for layer in range(BLOCKS):
        at = hidden_states(policy, policy.weights, batch, [layer])[0]
        assert torch.allclose(at, own[layer][batch.sequence, batch.position], atol=1e-12)
    last = hidden_states(policy, policy.weights, batch, [-1])[0]
    assert torch.equal(last, hidden_states(policy, policy.weights, batch, [BLOCKS])[0])
    names, base = ("final_layer_norm", "norm", "ln_f"), policy.model.base_model
    normed = next(getattr(base, name) for name in names if hasattr(base, name))(last)
    head = policy.model.get_output_embeddings()
    assert torch.allclose(head(normed), policy.logits(policy.weights, batch), atol=1e-6)


def test_blocks_that_return_tuples_can_be_read_and_cut():
    here = case_of(other_family("gptj").double())
    policy, model, batch = here.policy, here.policy.model, here.policy.batch(OBSERVED)
    normed = model.transformer.ln_f(hidden_states(policy, policy.weights, batch, [-1])[0])
    logits = policy.logits(policy.weights, batch)
    assert torch.allclose(model.get_output_embeddings()(normed), logits, atol=1e-9)
    check_forces(policy, here.examples, DPO_LOSS, 1)


@pytest.mark.parametrize("layer", range(BLOCKS + 1))
@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_force_on_features_is_the_loss_derivative_by_them(family, layer):
    """By autograd of the loss that trains, h_ℓ shifted at every position."""
    here = case(family, count=3)
    check_forces(here.policy, here.examples, DPO_LOSS, layer)


@pytest.mark.parametrize("config", [GRPOConfig(), SimKOConfig(share=0.4)], ids=repr)
def test_groups_sampled_at_a_temperature_pull_on_features_too(config):
    here, objective = case("llama_tied"), build_objective(config)
    check_forces(here.policy, here.updating(objective, 0.7), objective, 1)


def test_forces_under_adapters_go_through_them():
    examples = [pair.model_copy(update=REFERENCES[pair.id]) for pair in pairs(2)]
    check_forces(PolicyFunction(adapted("llama_tied"), torch.float64), examples, DPO_LOSS, 1)


def check_forces(policy, examples, objective, layer):
    forces = feature_forces(policy, examples, objective, [layer])
    assert [force.id for force in forces] == [example.id for example in examples]
    totals = step_totals(examples, objective)
    for example, made in zip(examples, forces, strict=True):
        batch = objective_batch([example], objective, totals, policy)
        shift = torch.randn(
            made.cotangent[0].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )

        size = torch.zeros((), dtype=torch.float64, requires_grad=True)
        with at_layers(policy, [layer], lambda h, shift=shift, size=size: h + size * shift):
            loss = objective.loss(objective_logps(policy, {}, batch, objective), batch)
        (slope,) = torch.autograd.grad(loss, size)
        assert float(slope) == pytest.approx(float((made.cotangent[0] * shift).sum()), rel=1e-10)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_the_residual_is_second_order(layer):
    here = case("gpt_neox", count=3)
    policy, batch, descent = here.policy, here.policy.batch(OBSERVED), here.descent(DPO_LOSS)
    start = policy.weights

    def residual(eta, at=start):
        after = {name: w + eta / ETA * descent[name] for name, w in start.items()}
        return feature_step(policy, start, after, batch, [layer], at=at).residual.norm()

    if layer == 0:  # embeddings are linear in their table
        assert float(residual(1.0)) < 1e-12
        return
    assert float(residual(0.25) / residual(0.125)) == pytest.approx(4, rel=0.15)
    assert float(residual(0.25, None) / residual(0.125, None)) == pytest.approx(8, rel=0.25)


def test_padding_and_later_positions_feel_no_force():
    here = case("gpt_neox", count=3)
    forces = feature_forces(here.policy, here.examples, DPO_LOSS, [1])
    for example, force in zip(here.examples, forces, strict=True):
        for row, sequence in enumerate((example.chosen, example.rejected)):
            assert not force.cotangent[0, row, len(sequence.ids) - 1 :].any()
            assert force.cotangent[0, row, : len(sequence.ids) - 1].any()


def test_the_model_and_its_hooks_are_left_as_they_were():
    here = case("gpt_neox")
    policy, start = here.policy, weights(here.policy.model)
    feature_forces(policy, here.examples, DPO_LOSS, [1])
    hooks = [(*m._forward_hooks, *m._forward_pre_hooks) for m in policy.model.modules()]
    assert not any(hooks)
    assert all(torch.equal(w, start[name]) for name, w in weights(policy.model).items())
    assert all(p.grad is None for p in policy.model.parameters())


ONE = torch.tensor([3.0, 4.0])


@pytest.mark.parametrize(
    ("forces", "resultant", "mean_cosine"),
    [
        (torch.stack([ONE, 10 * ONE, 0.1 * ONE]), 1, 1),
        (torch.eye(4), 0.5, 0),
        (torch.stack([ONE, -ONE]), 0, -1),
    ],
    ids=["one direction", "unrelated", "opposites"],
)
def test_consistency_of_directions_by_hand(forces, resultant, mean_cosine):
    made = consistency(forces)
    assert made.resultant == pytest.approx(resultant, abs=1e-9)
    assert made.mean_cosine == pytest.approx(mean_cosine)


def test_consistency_is_the_mean_over_pairs_and_leaves_out_what_does_not_pull():
    forces = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cosines = torch.nn.functional.cosine_similarity(forces[:, None], forces[None], dim=-1)
    pairwise = (cosines.sum() - 6) / 30
    made = consistency(torch.cat([forces, torch.zeros(2, 5, dtype=torch.float64)]))
    assert made.mean_cosine == pytest.approx(float(pairwise))
    assert made.examples == 6


@pytest.mark.parametrize("layer", [BLOCKS + 1, -BLOCKS - 2])
def test_a_layer_that_is_not_there_is_refused(policy, layer):
    with pytest.raises(ConfigError, match="layer"):
        hidden_states(policy, {}, policy.batch(OBSERVED), [layer])


def test_forces_of_nothing_are_refused(policy):
    with pytest.raises(ConfigError, match="examples"):
        feature_forces(policy, [], DPO_LOSS, [1])
    with pytest.raises(ConfigError, match="at least two"):
        consistency(torch.zeros(3, 4))


SGD = OptimizerConfig(name="sgd", learning_rate=1e-2)


@pytest.mark.parametrize(("count", "measured"), [(3, 3), (10, 8)])
def test_layers_are_those_of_the_features_module(count, measured):
    """The forces of a long step's first examples, with the denominators of the whole step."""
    record, policy = recorded(neox(), SGD, count=count), PolicyFunction(neox(), torch.float64)
    encoder = Encoder(Numbers(), 32, "drop")
    rows = step_layers(record, policy, PROBES, encoder, stage="dpo")
    assert [(row.layer, row.layers, row.examples, row.step) for row in rows] == [
        (0, 2, measured, 1),
        (1, 2, measured, 1),
        (2, 2, measured, 1),
    ]
    answers = [answer for answer in encoder.probes(PROBES) if answer is not None]
    batch = policy.batch(answers)
    objective = build_objective(record.facts.objective)
    for row in rows:
        before, after = (
            hidden_states(policy, policy.cast(weights), batch, [row.layer])
            for weights in (record.before, record.after)
        )
        moved = float((after - before).norm() / before.norm())
        assert row.moved == pytest.approx(moved, rel=1e-6)
        assert 0 <= row.unexplained < 1e-3
        forces = feature_forces(policy, record.examples, objective, [row.layer], at=record.before)
        pulls = torch.stack([force.total[0] for force in forces[:measured]])
        assert row.force == pytest.approx(float(pulls.norm(dim=1).mean()), rel=1e-9)
        assert row.resultant == pytest.approx(consistency(pulls).resultant, rel=1e-9)


def test_a_model_without_a_list_of_blocks_has_no_layers(monkeypatch):
    monkeypatch.setattr("dynolab.forces.features.blocks_of", lambda causal: None)
    record, policy = recorded(neox(), SGD), PolicyFunction(neox(), torch.float64)
    assert step_layers(record, policy, PROBES, Encoder(Numbers(), 32, "drop"), stage="dpo") == []


def test_one_example_has_no_common_direction():
    record, policy = recorded(neox(), SGD, count=1), PolicyFunction(neox(), torch.float64)
    rows = step_layers(record, policy, PROBES, Encoder(Numbers(), 32, "drop"), stage="dpo")
    assert all(math.isnan(row.resultant) and row.force > 0 for row in rows)
