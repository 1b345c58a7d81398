"""A step's forces and changes inside the network, layer by layer."""

from __future__ import annotations

import math

import pytest
import torch

from dynolab.data.encode import Encoder
from dynolab.forces import PolicyFunction, hidden_states, step_layers
from dynolab.forces.features import consistency, feature_forces
from dynolab.objectives import build_objective
from dynolab.training.config import OptimizerConfig
from tests.forces.small_models import neox, recorded
from tests.forces.test_step_forces import PROBES, Numbers

SGD = OptimizerConfig(name="sgd", learning_rate=1e-2)


def test_layers_are_those_of_the_features_module():
    record, policy = recorded(neox(), SGD, count=3), PolicyFunction(neox(), torch.float64)
    encoder = Encoder(Numbers(), 32, "drop")
    rows = step_layers(record, policy, PROBES, encoder, stage="dpo")
    assert [(row.layer, row.layers, row.examples, row.step) for row in rows] == [
        (0, 2, 3, 1),
        (1, 2, 3, 1),
        (2, 2, 3, 1),
    ]
    answers = [answer for answer in encoder.probes(PROBES) if answer is not None]
    batch, _ = policy.batch(answers)
    objective = build_objective(record.facts.objective)
    for row in rows:
        before, after = (
            hidden_states(policy, policy.cast(weights), batch, row.layer)
            for weights in (record.before, record.after)
        )
        moved = float((after - before).norm() / before.norm())
        assert row.moved == pytest.approx(moved, rel=1e-6)
        assert 0 <= row.unexplained < 1e-3
        forces = feature_forces(policy, record.examples, objective, row.layer, at=record.before)
        pulls = torch.stack([force.total for force in forces])
        assert row.force == pytest.approx(float(pulls.norm(dim=1).mean()), rel=1e-9)
        assert row.resultant == pytest.approx(consistency(pulls).resultant, rel=1e-9)


def test_a_model_without_a_list_of_blocks_has_no_layers(monkeypatch):
    monkeypatch.setattr("dynolab.forces.step.layers.blocks_of", lambda causal: None)
    record, policy = recorded(neox(), SGD), PolicyFunction(neox(), torch.float64)
    assert step_layers(record, policy, PROBES, Encoder(Numbers(), 32, "drop"), stage="dpo") == []


def test_one_example_has_no_common_direction():
    record, policy = recorded(neox(), SGD, count=1), PolicyFunction(neox(), torch.float64)
    rows = step_layers(record, policy, PROBES, Encoder(Numbers(), 32, "drop"), stage="dpo")
    assert all(math.isnan(row.resultant) and row.force > 0 for row in rows)
