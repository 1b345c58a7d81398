"""The papers' measures of a step, and which steps a ledger draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dynolab.forces import (
    PolicyFunction,
    kernel_lower_bound,
    measured_change,
    paper_influence,
    response_terms,
    step_terms,
    token_terms,
)
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.functional import Functional
from dynolab.forces.ledger.watched import sampled_steps
from dynolab.statistics import stratified_total
from tests.forces.small_models import encoded, neox, trained
from tests.forces.test_ledger import OPTIMIZERS


@pytest.mark.parametrize("batch_tokens", [None, 8])
def test_every_step_is_measured_as_the_papers_do(policy, batch_tokens):
    records = trained(OPTIMIZERS["sgd momentum"], steps=3)
    answers = [encoded(71), encoded(72, response=3)]
    functionals = [Functional.mean(name, [own]) for name, own in zip("ab", answers, strict=True)]
    ledger = Ledger(policy, functionals, by_token=[0, 1], batch_tokens=batch_tokens)
    measured = [ledger.enter(record).sources for record in reversed(records)][::-1]
    for record, step in zip(records, measured, strict=True):
        assert [(each.step, each.functional) for each in step] == [
            (record.facts.step, "a"),
            (record.facts.step, "b"),
        ]
        observed = response_terms(policy, answers, at=record.before)
        updating = [response.terms for response in step_terms(record, policy)]
        for each, answer, terms in zip(step, answers, observed, strict=True):
            batch = policy.batch([answer])
            change = measured_change(policy, record.before, record.after, batch)
            truth = paper_influence(change, terms, updating)
            assert (each.lbk, each.sign_delta) == pytest.approx(truth, rel=1e-6)
            assert each.kernel_bound > 0


def test_without_single_answers_nothing_is_measured(policy):
    (record,) = trained(OPTIMIZERS["sgd"], steps=1)
    ledger = Ledger(policy, [Functional.mean("both", [encoded(71), encoded(72)])])
    assert ledger.enter(record).sources == ()


V = 5


def jacobian(policy, sequence):
    """∂z/∂θ of one sequence's response logits, [tokens·V, parameters], by autograd."""
    batch = policy.batch([sequence])
    leaves = {name: w.clone().requires_grad_() for name, w in policy.weights.items()}
    rows = [
        torch.autograd.grad(z, list(leaves.values()), retain_graph=True, materialize_grads=True)
        for z in policy.logits(leaves, batch).flatten()
    ]
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])


@pytest.mark.parametrize("response", [1, 3])
def test_the_bound_lies_below_the_exact_spectral_norm(response):
    policy, eta = PolicyFunction(neox(), torch.float64), 0.3
    ratios = []
    for seed in range(4):
        seen, taught = encoded(seed, 3, 1), encoded(seed + 50, 4, response)
        (observed,), (updating,) = (response_terms(policy, [one]) for one in (seen, taught))
        left, right = jacobian(policy, seen), jacobian(policy, taught)
        kernel = left @ right.T
        (p_o, y_o), (p_u, y_u) = (distribution(policy, one) for one in (seen, taught))
        g = (p_u - y_u).flatten()
        change = -eta * (y_o - p_o) @ kernel @ g
        bound = kernel_lower_bound(change, observed, [updating], eta)
        exact = torch.linalg.matrix_norm(kernel, ord=2)
        assert 0 < float(bound) <= float(exact)
        ratios.append(float(bound / exact))
    assert min(ratios) < 0.9


def distribution(policy, sequence):
    batch = policy.batch([sequence])
    pi = policy.logits({}, batch).softmax(-1)
    return pi, torch.nn.functional.one_hot(batch.token, pi.shape[-1]).double()


def test_the_bound_is_reached_by_a_linear_softmax_that_learns_what_is_observed():
    """z = W h: K = ‖h‖² I, so a step on the observed token itself makes the bound an equality."""
    generator = torch.Generator().manual_seed(0)
    w, h = (torch.randn(*shape, generator=generator).double() for shape in ((V, 3), (3,)))
    y, c, eta = torch.tensor([2]), torch.tensor([-0.4], dtype=torch.float64), 0.1
    terms = token_terms((w @ h)[None], y, c)
    leaf = w.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((leaf @ h).log_softmax(-1)[2], leaf)
    change = (eta * c * (gradient * gradient).sum()).double()
    bound = kernel_lower_bound(change, terms, [terms], eta)
    assert float(bound) == pytest.approx(float(h @ h), rel=1e-12)


def test_the_bound_is_zero_where_nothing_pulls():
    terms = token_terms(torch.zeros(2, V), torch.tensor([0, 1]), torch.zeros(2))
    assert kernel_lower_bound(torch.zeros(2), terms, [terms], 0.1).tolist() == [0, 0]


def test_the_paper_s_ratios_are_their_formulae():
    logits = torch.randn(3, 2, V, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    tokens = torch.tensor([1, 3])
    terms = [token_terms(z, tokens) for z in logits]
    change = torch.tensor([0.3, -0.1], dtype=torch.float64)
    lbk, sign_delta = paper_influence(change, terms[0], [terms[1], terms[2]])
    one = torch.eye(V, dtype=torch.float64)
    a = torch.stack([torch.linalg.matrix_norm(one - p) for p in logits[0].softmax(-1)]).mean()
    pulls = torch.cat([(z.softmax(-1) - one[tokens]).norm(dim=-1) for z in logits[1:]]).mean()
    assert lbk == pytest.approx(float(change.norm() / (a.sqrt() * pulls)))
    assert sign_delta == pytest.approx(float(change.mean() / (a.sqrt() * pulls)))


def test_every_step_stands_for_itself_where_all_are_taken():
    assert sampled_steps([0, 1, 3], 1, seed=0) == {0: 1, 1: 1, 3: 1}
    assert sampled_steps([4, 5], 10, seed=0) == {4: 1, 5: 1}


@pytest.mark.parametrize("every", [2, 10])
@pytest.mark.parametrize("seed", range(3))
def test_the_ends_are_taken_and_each_stretch_has_a_step(seed, every):
    steps = list(range(0, 200, 2))
    weights = sampled_steps(steps, every, seed)
    assert len(weights) == 2 + math.ceil(98 / every)
    assert list(weights) == sorted(weights)
    assert weights[0] == weights[198] == 1
    assert sum(weights.values()) == len(steps)
    inner = list(weights)[1:-1]
    for number, step in enumerate(inner):
        assert step in steps[1 + every * number : 1 + every * (number + 1)]


def test_an_estimate_is_unbiased_and_its_interval_holds_the_total():
    """Noise on a trend, drawn 400 times."""
    values = np.random.default_rng(1).normal(size=102) + np.linspace(0, 5, 102)
    estimates = []
    for seed in range(400):
        weights = sampled_steps(range(102), 10, seed)
        own = values[list(weights)]
        estimates.append(stratified_total(own, np.array(list(weights.values()))))
    means = np.array([each.mean for each in estimates])
    total = values.sum()
    assert abs(means.mean() - total) < 3 * means.std() / len(means) ** 0.5
    assert np.mean([each.low <= total <= each.high for each in estimates]) >= 0.95


def test_a_total_over_all_steps_is_exact():
    total = stratified_total(np.array([1.0, 2.0, 4.0]), np.array([1, 1, 1]))
    assert (total.low, total.mean, total.high) == (7.0, 7.0, 7.0)
    assert np.isnan(stratified_total(np.array([1.0, 2.0]), np.array([1, 5])).low)


def test_an_interval_of_two_strata_by_hand():
    """`s² = (1 − 3)² / 2 = 2`, so that it is `± t₀.₉₇₅(1) √((2·1 + 3·2) · 2)`."""
    total = stratified_total(np.array([1.0, 3.0]), np.array([2, 3]))
    assert total.mean == 11.0
    assert total.high - total.mean == pytest.approx(12.706205 * 4)
