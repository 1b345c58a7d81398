from __future__ import annotations

import copy
import logging

import pytest
import torch

from dynolab.data.batches import collate
from dynolab.errors import ConfigError
from dynolab.forces import (
    PolicyFunction,
    central_difference,
    change_of,
    measured_change,
    midpoint,
)
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from tests.forces.small_models import direction, encoded, llama, neox, relative, weights

BATCH = collate([encoded(1), encoded(2, 6, 3), encoded(3, 1, 1)], 0)


@pytest.mark.parametrize("build", [neox, llama])
def test_jvp_is_the_central_difference_in_fp32(build):
    model = build(dtype=torch.float32)
    policy = PolicyFunction(model)
    d = direction(model, 1e-3)
    jvp = policy.change_along(weights(model), [d], BATCH)[0]
    assert relative(central_difference(policy, weights(model), d, BATCH), jvp) < 3e-3


def test_llama_in_fp64_is_limited_by_its_stock_norm_alone():
    """RMSNorm computes in float32, whose rounding the wide difference averages out."""
    model = llama(dtype=torch.float32)
    wide = PolicyFunction(model, torch.float64)
    d = direction(model, 1e-2)
    jvp = wide.change_along(weights(model), [d], BATCH)[0]
    single = PolicyFunction(model).change_along(weights(model), [d], BATCH)[0]
    assert relative(single.double(), jvp) < 1e-5


def test_tied_embeddings_move_in_both_places():
    model = llama()
    policy = PolicyFunction(model)
    assert "lm_head.weight" not in policy.weights
    name = "model.embed_tokens.weight"
    d = {name: direction(model, 2e-3)[name]}
    jvp = policy.change_along(weights(model), [d], BATCH)[0]

    moved = []
    for sign in (1, -1):
        other = copy.deepcopy(model)
        with torch.no_grad():
            other.get_input_embeddings().weight.add_(sign * d[name])
            assert other.get_output_embeddings().weight is other.get_input_embeddings().weight
            moved.append(token_logps(ResponseLogits(other)(BATCH), BATCH))
    assert relative((moved[0] - moved[1]) / 2, jvp) < 2e-2


def test_several_directions_share_a_pass_and_change_nothing(monkeypatch):
    model = neox()
    policy = PolicyFunction(model, torch.float64)
    directions = [direction(model, 1e-3, seed) for seed in range(3)]
    together = policy.change_along(weights(model), directions, BATCH)
    apart = [policy.change_along(weights(model), [d], BATCH)[0] for d in directions]
    assert relative(together, torch.stack(apart)) < 1e-12
    monkeypatch.setattr(PolicyFunction, "tangents_together", 2)
    assert relative(policy.change_along(weights(model), iter(directions), BATCH), together) < 1e-12


def test_directions_may_leave_parameters_out_and_add_over_blocks():
    model = neox()
    policy = PolicyFunction(model, torch.float64)
    d = direction(model, 1e-3)
    names = sorted(d)
    halves = [{n: d[n] for n in names[::2]}, {n: d[n] for n in names[1::2]}]
    whole, *parts = policy.change_along(weights(model), [d, *halves], BATCH)
    assert relative(sum(parts), whole) < 1e-12


def test_measured_change_is_that_of_two_models():
    model, other = neox(0), neox(1)
    policy = PolicyFunction(model, torch.float64)
    measured = measured_change(policy, weights(model), weights(other), BATCH)
    with torch.no_grad():
        truth = token_logps(ResponseLogits(other)(BATCH), BATCH) - token_logps(
            ResponseLogits(model)(BATCH), BATCH
        )
    assert relative(measured, truth) < 1e-10


def test_the_model_is_left_as_it_was(caplog):
    model = neox()
    model.train()
    start = weights(model)
    policy = PolicyFunction(model, torch.float64)
    model.config._attn_implementation = "flex_attention"
    with caplog.at_level(logging.WARNING):
        policy.change_along(start, [direction(model, 1.0)], BATCH)
    assert "flex_attention" in caplog.text
    assert model.training
    assert model.config._attn_implementation == "flex_attention"
    for name, w in weights(model).items():
        assert torch.equal(w, start[name])
    assert all(p.grad is None for p in model.parameters())


def test_foreign_weights_are_refused_by_name():
    policy = PolicyFunction(neox(), torch.float64)
    with pytest.raises(ConfigError, match="no_such"):
        policy.change_along({}, [{"no_such": torch.zeros(1)}], BATCH)
    name = "gpt_neox.embed_in.weight"
    with pytest.raises(ConfigError, match="shape"):
        policy.change_along({}, [{name: torch.zeros(1)}], BATCH)


def test_midpoint_and_change():
    before, after = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([2.0, 0.0])}
    assert midpoint(before, after)["w"].tolist() == [1.5, 1.0]
    assert change_of(before, after)["w"].tolist() == [1.0, -2.0]
