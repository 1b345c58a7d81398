from __future__ import annotations

import pytest
import torch

from dynolab.forces import (
    PolicyFunction,
    kernel_lower_bound,
    paper_influence,
    response_terms,
    token_terms,
)
from tests.forces.small_models import encoded, neox

V = 5


def jacobian(policy, sequence):
    """∂z/∂θ of one sequence's response logits, [tokens·V, parameters], by autograd."""
    batch, _ = policy.batch([sequence])
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
    batch, _ = policy.batch([sequence])
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
