"""Wrong engines, each of which the comparison with independent differences catches.

The truth is a step on one loss token at a time by forwards of moved weights, computed before an
engine is broken; the unbroken engine meets it to 1e-6.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dynolab.data.batches import collate
from dynolab.forces import PolicyFunction, contraction, factors, force_map, gram, policy, problem
from dynolab.objectives import DPO, DPOConfig
from tests.forces.families import build, dpo_map_by_differences
from tests.forces.small_models import encoded, pairs, relative, with_reference

OBSERVED = encoded(1, 4, 6)


@pytest.fixture(scope="module")
def setting():
    """A tied model, one pair, and the true map of the pair on an observed response."""
    model = build("llama_tied")
    function = PolicyFunction(model, torch.float64)
    examples = with_reference(model, pairs(1))
    truth = dpo_map_by_differences(function, OBSERVED, examples[0], beta=0.1, eta=1.0)
    return function, examples, truth


def error(setting, route: str = "both_sides") -> float:
    function, examples, truth = setting
    found = force_map(function, [OBSERVED], examples, DPO(DPOConfig()), route=route)
    return relative(torch.tensor(found.force), truth)


@pytest.fixture(params=["columns", "rows", "both_sides"])
def any_route(request):
    return request.param


def test_unbroken(setting, any_route):
    assert error(setting, any_route) < 1e-6


def test_sign(setting, any_route, monkeypatch):
    rates = problem._learning_rates
    monkeypatch.setattr(problem, "_learning_rates", lambda *a: -rates(*a))
    assert error(setting, any_route) == pytest.approx(2)


def test_a_transposed(setting, any_route, monkeypatch):
    """Aᵀ = I − π 1ᵀ in A's place: e_y − π_y 1 for e_y − π."""

    def wrong(logits, batch):  # type: ignore[no-untyped-def]
        target = batch.token[:, None]
        p = logits.softmax(-1).gather(-1, target).detach()
        shifted = logits.gather(-1, target) - p * logits.sum(-1, keepdim=True)
        value = torch.log_softmax(logits, -1).gather(-1, target)
        return (shifted - shifted.detach() + value.detach()).squeeze(-1)

    monkeypatch.setattr(policy, "token_logps", wrong)
    assert error(setting, any_route) > 0.01


def test_tokens_shifted_by_one(setting, any_route, monkeypatch):
    def shifted(*arguments):  # type: ignore[no-untyped-def]
        batch = collate(*arguments)
        return replace(batch, position=batch.position - 1)

    monkeypatch.setattr(factors if any_route == "both_sides" else gram, "collate", shifted)
    assert error(setting, any_route) > 0.1


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


def test_attention_detached(setting, any_route, monkeypatch):
    attend = torch.nn.functional.scaled_dot_product_attention

    def detached(query, key, value, **more):  # type: ignore[no-untyped-def]
        return attend(query.detach(), key.detach(), value, **more)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", detached)
    assert error(setting, any_route) > 1e-3


@pytest.mark.parametrize("broken", ["_table_rows", "_normed"])
def test_a_wrong_rule_is_found_and_its_parameters_taken_whole(setting, broken, monkeypatch):
    """The engine tries its rules against autograd before it trusts them."""
    true = getattr(factors, broken)

    def wrong(*arguments):  # type: ignore[no-untyped-def]
        found = true(*arguments)
        return replace(found, rows=2 * found.rows) if broken == "_table_rows" else 2 * found

    monkeypatch.setattr(factors, broken, wrong)
    assert error(setting) < 1e-6
