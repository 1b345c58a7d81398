"""The change of log π along a change of the weights, of any tokens."""

from __future__ import annotations

import copy
import logging

import pytest
import torch

from dynolab.data.batches import collate
from dynolab.errors import ConfigError
from dynolab.forces import (
    PolicyFunction,
    View,
    central_difference,
    change_of,
    measured_change,
    midpoint,
    one_step,
)
from dynolab.forces.function import policy as policy_module
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from tests.forces.families import build
from tests.forces.small_models import VOCABULARY, direction, encoded, llama, neox, relative, weights

BATCH = collate([encoded(1), encoded(2, 6, 3), encoded(3, 1, 1)], 0)
TOKENS = len(BATCH.token)


@pytest.fixture(scope="module")
def logits(policy):
    return policy.logits(policy.weights, BATCH)


def views(logits):
    top = View.top(logits, 4)
    realised = View.realised(BATCH)
    return {
        "realised": realised,
        "argmax": View.argmax(logits),
        "top": top,
        "both": realised.beside(top),
    }


def test_constructors_name_the_tokens_they_promise(logits):
    made = views(logits)
    assert torch.equal(made["realised"].tokens[:, 0], BATCH.token)
    assert torch.equal(made["argmax"].tokens[:, 0], logits.argmax(-1))
    ranked = logits.sort(dim=-1, descending=True).indices[:, :4]
    assert torch.equal(made["top"].tokens, ranked)
    assert torch.equal(made["both"].tokens, torch.cat([BATCH.token[:, None], ranked], 1))
    assert View.vocabulary().tokens is None


def test_every_view_is_the_gather_of_the_whole_vocabulary(policy, logits):
    start, d = policy.weights, direction(policy.model, 1e-3)
    after = {name: w + d[name] for name, w in start.items()}
    full = one_step(policy, start, after, BATCH, view=View.vocabulary())
    assert full.measured.shape == full.predicted.shape == (TOKENS, VOCABULARY)
    for view in views(logits).values():
        step = one_step(policy, start, after, BATCH, view=view)
        assert step.measured.shape == view.tokens.shape
        assert relative(step.measured, full.measured.gather(1, view.tokens)) < 1e-12
        assert relative(step.predicted, full.predicted.gather(1, view.tokens)) < 1e-12
        assert relative(step.residual, full.residual.gather(1, view.tokens)) < 1e-9


def test_without_a_view_the_realised_tokens_are_observed(policy):
    start, d = policy.weights, direction(policy.model, 1e-3)
    after = {name: w + d[name] for name, w in start.items()}
    plain = one_step(policy, start, after, BATCH)
    seen = one_step(policy, start, after, BATCH, view=View.realised(BATCH))
    assert plain.measured.shape == plain.predicted.shape == (TOKENS,)
    assert torch.equal(plain.measured, seen.measured[:, 0])
    assert torch.equal(plain.predicted, seen.predicted[:, 0])
    assert torch.equal(measured_change(policy, start, after, BATCH), plain.measured)


@pytest.mark.parametrize("family", ["gpt_neox", "llama_tied", "gpt2"])
def test_the_whole_vocabulary_is_the_central_difference_and_the_dense_a_times_dz(family):
    policy = PolicyFunction(build(family), torch.float64)
    start, d, view = policy.weights, direction(policy.model, 1e-3), View.vocabulary()
    along = policy.change_along(start, [d], BATCH, view=view)[0]
    assert relative(central_difference(policy, start, d, BATCH, view=view), along) < 1e-6

    (dz,) = policy.derivatives(lambda w: policy.logits(w, BATCH), start, [d])
    pi = policy.logits(start, BATCH).softmax(-1)
    dense = torch.eye(VOCABULARY, dtype=torch.float64) - pi[:, None, :]
    assert relative(along, torch.einsum("tvw,tw->tv", dense, dz)) < 1e-12


def test_the_change_along_a_view_is_autograd_s(policy, logits):
    d = direction(policy.model, 1e-3)
    leaves = {name: w.clone().requires_grad_() for name, w in policy.weights.items()}
    view = View.top(logits, 2)
    logps = policy.logits(leaves, BATCH).log_softmax(-1).gather(1, view.tokens)
    truth = []
    for one in logps.flatten():
        gradient = torch.autograd.grad(one, list(leaves.values()), retain_graph=True)
        truth.append(sum((g * d[name]).sum() for name, g in zip(leaves, gradient, strict=True)))
    along = policy.change_along(policy.weights, [d], BATCH, view=view)[0]
    assert relative(along, torch.stack(truth).view_as(along)) < 1e-11


def test_probability_is_conserved_over_the_vocabulary(policy):
    """`π_mᵀ (A dz) = 0`: what one token gains the others lose, weighted by their probability."""
    directions = [direction(policy.model, 1e-3, seed) for seed in (1, 2)]
    along = policy.change_along(policy.weights, directions, BATCH, view=View.vocabulary())
    pi = policy.logits(policy.weights, BATCH).softmax(-1)
    assert along.shape == (2, TOKENS, VOCABULARY)
    assert float((pi * along).sum(-1).abs().max()) < 1e-13 * float(along.abs().max()) * VOCABULARY


def test_a_shift_of_all_logits_is_seen_by_no_view(logits):
    """`A 1 = 0`, to first order and exactly."""
    everywhere = View.vocabulary()
    shift = torch.linspace(-3, 3, TOKENS, dtype=torch.float64)[:, None]
    for view in [*views(logits).values(), everywhere]:
        assert torch.allclose(view.logps(logits + shift), view.logps(logits), atol=1e-13)
        _, moved = torch.func.jvp(view.logps, (logits,), (shift.expand_as(logits),))
        assert float(moved.abs().max()) < 1e-13


def test_a_bound_on_memory_takes_fewer_directions_at_once_and_changes_nothing(policy, monkeypatch):
    directions = [direction(policy.model, 1e-3, seed) for seed in range(3)]
    whole = policy.change_along(policy.weights, directions, BATCH, view=View.vocabulary())
    passes, one_pass = [], PolicyFunction._jvps

    def counted(self, function, at, some):
        passes.append(len(some))
        return one_pass(self, function, at, some)

    monkeypatch.setattr(PolicyFunction, "_jvps", counted)
    monkeypatch.setattr(policy_module, "_TANGENT_BYTES", 4 * TOKENS * VOCABULARY * 8 * 2)
    monkeypatch.setattr(PolicyFunction, "tangents_together", 8)
    again = policy.change_along(policy.weights, iter(directions), BATCH, view=View.vocabulary())
    assert passes == [2, 1]
    assert relative(again, whole) < 1e-12


def test_a_change_keeps_its_digits_where_a_token_is_nearly_certain():
    """In float32, with 1 − π below the rounding of one: against float64."""
    logits = torch.tensor([[30.0, 1.0, -2.0, 0.5]])
    moved = torch.tensor([[[3.0, 3.2, 2.9, 3.1]]])
    found = View.vocabulary().changes(logits, moved)
    exact = View.vocabulary().changes(logits.double(), moved.double())
    assert exact[0, 0, 0] != 0
    assert relative(found.double(), exact) < 1e-6
    assert abs(float(found[0, 0, 0]) / float(exact[0, 0, 0]) - 1) < 1e-5


def test_a_view_that_cannot_be_is_refused(logits):
    for k in (0, VOCABULARY + 1):
        with pytest.raises(ConfigError, match=f"k = {k}"):
            View.top(logits, k)
    with pytest.raises(ConfigError, match="vocabulary"):
        View.vocabulary().beside(View.argmax(logits))


def test_all_tokens_of_a_vocabulary_can_be_the_likeliest_ones():
    assert View.top(torch.tensor([[0.0, 2.0, 1.0]]), 3).tokens.tolist() == [[1, 2, 0]]


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


def test_several_directions_share_a_pass_and_change_nothing(policy, monkeypatch):
    directions = [direction(policy.model, 1e-3, seed) for seed in range(3)]
    together = policy.change_along(policy.weights, directions, BATCH)
    apart = [policy.change_along(policy.weights, [d], BATCH)[0] for d in directions]
    assert relative(together, torch.stack(apart)) < 1e-12
    monkeypatch.setattr(PolicyFunction, "tangents_together", 2)
    assert relative(policy.change_along(policy.weights, iter(directions), BATCH), together) < 1e-12


def test_directions_may_leave_parameters_out_and_add_over_blocks(policy):
    d = direction(policy.model, 1e-3)
    names = sorted(d)
    halves = [{n: d[n] for n in names[::2]}, {n: d[n] for n in names[1::2]}]
    whole, *parts = policy.change_along(policy.weights, [d, *halves], BATCH)
    assert relative(sum(parts), whole) < 1e-12


def test_measured_change_is_that_of_two_models(policy):
    other = neox(1)
    measured = measured_change(policy, policy.weights, weights(other), BATCH)
    with torch.no_grad():
        before, after = (
            token_logps(ResponseLogits(model)(BATCH), BATCH) for model in (neox(0), other)
        )
    assert relative(measured, after - before) < 1e-10


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


@pytest.mark.parametrize(
    ("name", "message"), [("no_such", "no_such"), ("gpt_neox.embed_in.weight", "shape")]
)
def test_foreign_weights_are_refused_by_name(policy, name, message):
    with pytest.raises(ConfigError, match=message):
        policy.change_along({}, [{name: torch.zeros(1)}], BATCH)


def test_midpoint_and_change():
    before, after = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([2.0, 0.0])}
    assert midpoint(before, after)["w"].tolist() == [1.5, 1.0]
    assert change_of(before, after)["w"].tolist() == [1.0, -2.0]
