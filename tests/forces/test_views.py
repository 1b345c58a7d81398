from __future__ import annotations

import pytest
import torch

from dynolab.data.batches import collate
from dynolab.errors import ConfigError
from dynolab.forces import (
    PolicyFunction,
    View,
    central_difference,
    measured_change,
    one_step,
)
from dynolab.forces.function import policy as policy_module
from tests.forces.families import build
from tests.forces.small_models import VOCABULARY, encoded, neox, relative, weights

BATCH = collate([encoded(1), encoded(2, 6, 3), encoded(3, 1, 1)], 0)
TOKENS = len(BATCH.token)


def direction(model, size: float = 1e-3, seed: int = 5):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: size * torch.randn(w.shape, generator=generator, dtype=torch.float64)
        for name, w in weights(model).items()
    }


@pytest.fixture(scope="module")
def policy():
    return PolicyFunction(neox(), torch.float64)


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
    start, d = policy.weights, direction(policy.model)
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
    start, d = policy.weights, direction(policy.model)
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
    start, d, view = policy.weights, direction(policy.model), View.vocabulary()
    along = policy.change_along(start, [d], BATCH, view=view)[0]
    assert relative(central_difference(policy, start, d, BATCH, view=view), along) < 1e-6

    (dz,) = policy.derivatives(lambda w: policy.logits(w, BATCH), start, [d])
    pi = policy.logits(start, BATCH).softmax(-1)
    dense = torch.eye(VOCABULARY, dtype=torch.float64) - pi[:, None, :]
    assert relative(along, torch.einsum("tvw,tw->tv", dense, dz)) < 1e-12


def test_the_change_along_a_view_is_autograd_s(policy, logits):
    d = direction(policy.model)
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
    directions = [direction(policy.model, seed=seed) for seed in (1, 2)]
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
    directions = [direction(policy.model, seed=seed) for seed in range(3)]
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


def test_no_direction_gives_no_row_of_the_view_s_shape(policy):
    view = View.vocabulary()
    assert policy.change_along({}, [], BATCH).shape == (0, TOKENS)
    assert policy.change_along({}, [], BATCH, view=view).shape == (0, TOKENS, VOCABULARY)


def test_a_direction_that_moves_no_weight_changes_nothing(policy):
    along = policy.change_along({}, [{}, {}], BATCH, view=View.vocabulary())
    assert along.shape == (2, TOKENS, VOCABULARY)
    assert not along.any()


def test_a_view_that_cannot_be_is_refused(logits):
    for k in (0, VOCABULARY + 1):
        with pytest.raises(ConfigError, match=f"k = {k}"):
            View.top(logits, k)
    with pytest.raises(ConfigError, match="vocabulary"):
        View.vocabulary().beside(View.argmax(logits))


def test_all_tokens_of_a_vocabulary_can_be_the_likeliest_ones() -> None:
    assert View.top(torch.tensor([[0.0, 2.0, 1.0]]), 3).tokens.tolist() == [[1, 2, 0]]
