"""Wrong engines, each of which the comparison with independent differences catches.

The truth is a step on one loss token at a time by forwards of moved weights, computed before an
engine is broken; the unbroken engine meets it to 1e-6.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dynolab.data.batches import collate
from dynolab.forces.function import views
from dynolab.forces.function.derivatives import derivatives_of
from dynolab.forces.map import (
    contraction,
    factors,
    gram,
    output_gradients as signals,
    problem,
    weighted,
)
from dynolab.objectives import GRPO, GRPOConfig, base
from tests.forces.families import OBSERVED, case, dpo_columns_by_differences
from tests.forces.small_models import relative


@pytest.fixture(scope="module")
def setting():
    """A tied model with one pair, and the true map of the pair on an observed response."""
    here = case("llama_tied", count=1)
    derivatives_of(here.policy)  # measured once, and of the unbroken model
    return here, dpo_columns_by_differences(here.policy, OBSERVED[0], here.examples[0])


def error(setting) -> float:
    here, truth = setting
    return relative(here.map(observed=OBSERVED[:1]), truth)


def test_unbroken(setting):
    assert error(setting) < 1e-6


def test_sign(setting, monkeypatch):
    true = problem.weighted_responses
    monkeypatch.setattr(
        problem,
        "weighted_responses",
        lambda *a: [replace(one, weights=-one.weights) for one in true(*a)],
    )
    assert error(setting) == pytest.approx(2)


def test_a_transposed(setting, monkeypatch):
    """Aᵀ = I − π 1ᵀ in A's place: the gradient e_y − π_y 1 for e_y − π."""

    def backward(logits):  # type: ignore[no-untyped-def]
        value = torch.log_softmax(logits, -1).detach()
        shifted = logits - value.exp() * logits.sum(-1, keepdim=True)
        return shifted - shifted.detach() + value

    def forward(view, logits, moved):  # type: ignore[no-untyped-def]
        change = moved - logits.softmax(-1) * moved.sum(-1, keepdim=True)
        return change.gather(-1, view.tokens.expand(*moved.shape[:-1], -1))

    def signal(rates, logits, targets, temperature):  # type: ignore[no-untyped-def]
        own = torch.zeros_like(logits).scatter(-1, targets, 1.0)
        return rates * (logits.softmax(-1).gather(-1, targets) - own)

    monkeypatch.setattr(views, "log_softmax", backward)
    monkeypatch.setattr(views.View, "changes", forward)
    monkeypatch.setattr(signals, "target_force", signal)
    assert error(setting) > 0.01


def test_shift_by_one(setting, monkeypatch):
    def shifted(*arguments):  # type: ignore[no-untyped-def]
        batch = collate(*arguments)
        return replace(batch, position=batch.position - 1)

    monkeypatch.setattr(weighted, "collate", shifted)
    assert error(setting) > 0.1


@pytest.mark.parametrize("axis", [0, 1], ids=["rows", "columns"])
def test_shift_by_one_in_the_finished_map(setting, axis):
    """Sums along the other axis cannot see it."""
    here, truth = setting
    found = here.map(observed=OBSERVED[:1])
    assert relative(found.roll(1, axis), truth) > 0.1


def test_embedding_dropped(setting, monkeypatch):
    monkeypatch.setattr(contraction, "_tables", lambda *a: None)
    assert error(setting) > 0.05


def test_tied_cross_terms_dropped(setting, monkeypatch):
    monkeypatch.setattr(contraction, "_crossed", lambda *a: None)
    assert error(setting) > 0.01


def test_norms_dropped(setting, monkeypatch):
    add = factors._add_dense
    monkeypatch.setattr(factors, "_add_dense", lambda f, name, g: add(f, name, 0 * g))
    monkeypatch.setattr(gram, "without_rule", lambda *a: set())
    assert error(setting) > 1e-3


@pytest.mark.parametrize("missing", ["factor", "softmax"])
def test_one_over_t_missing(setting, missing):
    """G without its factor 1/T, or with π at T = 1, against autograd of GRPO at T = 0.7."""
    (here, _), objective = setting, GRPO(GRPOConfig())
    batch = here.batch(objective, 0.7)
    logits = here.policy.logits({}, batch).detach().requires_grad_()
    logps = base.read_logps(objective, logits, batch)
    (truth,) = torch.autograd.grad(objective.loss(logps, batch), logits)
    rates, fixed = objective.token_weights(logps.detach(), batch), logits.detach()
    assert relative(base.force(rates, fixed, batch), truth) < 1e-12
    cold = replace(batch, temperature=1.0)
    wrong = (
        0.7 * base.force(rates, fixed, batch)
        if missing == "factor"
        else base.force(rates / 0.7, fixed, cold)
    )
    assert relative(wrong, truth) > 0.01


def test_attention_detached(setting, monkeypatch):
    attend = torch.nn.functional.scaled_dot_product_attention

    def detached(query, key, value, **more):  # type: ignore[no-untyped-def]
        return attend(query.detach(), key.detach(), value, **more)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", detached)
    assert error(setting) > 1e-3


@pytest.mark.parametrize("broken", ["_table_rows", "normed"])
def test_a_wrong_rule_is_found_and_its_parameters_taken_whole(setting, broken, monkeypatch):
    """The engine tries its rules against autograd before it trusts them."""
    true = getattr(factors, broken)

    def wrong(*arguments):  # type: ignore[no-untyped-def]
        found = true(*arguments)
        return replace(found, rows=2 * found.rows) if broken == "_table_rows" else 2 * found

    monkeypatch.setattr(factors, broken, wrong)
    assert error(setting) < 1e-6
