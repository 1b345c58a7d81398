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
    one_step,
)
from dynolab.likelihood import ResponseLogits, token_logps
from tests.forces.small_models import encoded, llama, neox, relative, weights


def _direction(model, size: float, seed: int = 5):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: size * torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w.dtype)
        for name, w in weights(model).items()
    }


def _shifted(start, change, scale: float):
    return {name: w + scale * change[name] for name, w in start.items()}


BATCH = collate([encoded(1), encoded(2, 6, 3), encoded(3, 1, 1)], 0)


def test_jvp_is_the_central_difference_in_fp64():
    model = neox()
    policy = PolicyFunction(model, torch.float64)
    d = _direction(model, 1e-3)
    jvp = policy.change_along(weights(model), [d], BATCH)[0]
    assert relative(central_difference(policy, weights(model), d, BATCH), jvp) < 1e-6
    assert jvp.dtype == torch.float64


@pytest.mark.parametrize("build", [neox, llama])
def test_jvp_is_the_central_difference_in_fp32(build):
    model = build(dtype=torch.float32)
    policy = PolicyFunction(model)
    d = _direction(model, 1e-3)
    jvp = policy.change_along(weights(model), [d], BATCH)[0]
    assert relative(central_difference(policy, weights(model), d, BATCH), jvp) < 3e-3


def test_llama_in_fp64_is_limited_by_its_stock_norm_alone():
    """RMSNorm computes in float32, whose rounding the wide difference averages out."""
    model = llama(dtype=torch.float32)
    wide = PolicyFunction(model, torch.float64)
    d = _direction(model, 1e-2)
    jvp = wide.change_along(weights(model), [d], BATCH)[0]
    single = PolicyFunction(model).change_along(weights(model), [d], BATCH)[0]
    assert relative(single.double(), jvp) < 1e-5


def test_tied_embeddings_move_in_both_places():
    model = llama()
    policy = PolicyFunction(model)
    assert "lm_head.weight" not in policy.weights
    name = "model.embed_tokens.weight"
    d = {name: _direction(model, 2e-3)[name]}
    jvp = policy.change_along(weights(model), [d], BATCH)[0]

    moved = []
    for sign in (1, -1):
        other = copy.deepcopy(model)
        with torch.no_grad():
            other.get_input_embeddings().weight.add_(sign * d[name])
            assert other.get_output_embeddings().weight is other.get_input_embeddings().weight
            moved.append(token_logps(ResponseLogits(other)(BATCH), BATCH))
    assert relative((moved[0] - moved[1]) / 2, jvp) < 2e-2


def test_the_residual_is_second_order_at_the_start_and_third_at_the_midpoint():
    model = neox()
    policy = PolicyFunction(model, torch.float64)
    start, d = weights(model), _direction(model, 4e-3)

    def residual(scale: float, from_start: bool) -> float:
        after = _shifted(start, d, scale)
        place = start if from_start else None
        return float(one_step(policy, start, after, BATCH, at=place).residual.norm())

    assert residual(1.0, True) / residual(0.5, True) == pytest.approx(4, rel=0.15)
    assert residual(1.0, False) / residual(0.5, False) == pytest.approx(8, rel=0.25)
    assert residual(1.0, False) < residual(1.0, True) / 3


def test_several_directions_share_a_pass_and_change_nothing(monkeypatch):
    model = neox()
    policy = PolicyFunction(model, torch.float64)
    directions = [_direction(model, 1e-3, seed) for seed in range(3)]
    together = policy.change_along(weights(model), directions, BATCH)
    apart = [policy.change_along(weights(model), [d], BATCH)[0] for d in directions]
    assert relative(together, torch.stack(apart)) < 1e-12
    monkeypatch.setattr(PolicyFunction, "tangents_together", 2)
    assert relative(policy.change_along(weights(model), iter(directions), BATCH), together) < 1e-12


def test_directions_may_leave_parameters_out_and_add_over_blocks():
    model = neox()
    policy = PolicyFunction(model, torch.float64)
    d = _direction(model, 1e-3)
    names = sorted(d)
    halves = [{n: d[n] for n in names[::2]}, {n: d[n] for n in names[1::2]}]
    whole, *parts = policy.change_along(weights(model), [d, *halves], BATCH)
    assert relative(sum(parts), whole) < 1e-12


@pytest.mark.parametrize("build", [neox, llama])
def test_padding_and_company_change_nothing(build):
    model = build()
    dtype = next(model.parameters()).dtype
    policy = PolicyFunction(model, dtype)
    d = _direction(model, 1e-3)
    whole = policy.change_along(weights(model), [d], BATCH)[0]
    alone = policy.change_along(weights(model), [d], collate([encoded(2, 6, 3)], 0))[0]
    assert relative(whole[BATCH.sequence == 1], alone) < (1e-12 if build is neox else 1e-4)


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
    model.config._attn_implementation = "flex_attention"
    start = weights(model)
    policy = PolicyFunction(model, torch.float64)
    with caplog.at_level(logging.WARNING):
        policy.change_along(start, [_direction(model, 1.0)], BATCH)
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


def test_sft_lifts_its_own_sequence_by_eta_times_the_squared_gradient():
    """Own-sequence force of one SFT step d = −η g: Δ log π = +η ‖g‖² to first order."""
    model = neox()
    policy = PolicyFunction(model, torch.float64)
    batch, eta = collate([encoded(1)], 0), 1e-6
    leaves = {name: w.requires_grad_() for name, w in weights(model).items()}
    loss = -policy.logps(leaves, batch).sum()
    gradient = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    start = weights(model)
    after = _shifted(start, gradient, -eta)
    step = one_step(policy, start, after, batch)
    squared = sum(g.square().sum() for g in gradient.values())
    assert float(step.predicted.sum()) == pytest.approx(float(eta * squared), rel=1e-6)
    assert float(step.measured.sum()) == pytest.approx(float(eta * squared), rel=1e-2)


def test_midpoint_and_change():
    before, after = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([2.0, 0.0])}
    assert midpoint(before, after)["w"].tolist() == [1.5, 1.0]
    assert change_of(before, after)["w"].tolist() == [1.0, -2.0]
