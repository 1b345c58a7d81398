"""The change of log π along a change of the weights, of any tokens."""

from __future__ import annotations

import logging

import pytest
import torch

from dynolab.data.batches import collate
from dynolab.errors import ConfigError
from dynolab.forces import (
    PolicyFunction,
    View,
    one_step,
)
from dynolab.forces.function import policy as policy_module
from tests.forces.families import build
from tests.forces.small_models import (
    VOCABULARY,
    central_difference,
    direction,
    encoded,
    neox,
    relative,
    weights,
)

BATCH = collate([encoded(1), encoded(2, 6, 3), encoded(3, 1, 1)], 0)
TOKENS = len(BATCH.token)


@pytest.fixture(scope="module")
def logits(policy):
    return policy.logits(policy.weights, BATCH)


def views(logits):
    top = View(logits.topk(4).indices)
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


def test_a_view_that_cannot_be_is_refused(logits):
    with pytest.raises(ConfigError, match="vocabulary"):
        View.vocabulary().beside(View.argmax(logits))


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
