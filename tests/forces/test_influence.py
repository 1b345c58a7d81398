from __future__ import annotations

import pytest
import torch

from dynolab.errors import ConfigError
from dynolab.forces import (
    PolicyFunction,
    accumulated_influence,
    kernel_lower_bound,
    paper_influence,
    response_terms,
    token_terms,
)
from dynolab.forces.influence import moving_average
from dynolab.results.study import ForceRow, ProbeScore
from tests.forces.small_models import encoded, neox

V = 5


def row(step: int, kind: str = "chosen", pair_id: str = "a", stage: str = "dpo") -> ForceRow:
    chosen, rejected, history = 1.0 + step, -0.5 * step, 0.25
    predicted = chosen + rejected + history
    return ForceRow(
        stage=stage,
        step=step,
        pair_id=pair_id,
        split="train",
        kind=kind,
        tokens=3,
        in_batch=True,
        measured=predicted + 0.125,
        predicted=predicted,
        from_chosen=chosen,
        from_rejected=rejected,
        from_history=history,
        residual=0.125,
    )


def probe(step: int, logp: float, kind: str = "chosen") -> ProbeScore:
    return ProbeScore(pair_id="a", split="train", kind=kind, tokens=3, logp=logp, step=step)


def test_forces_add_up_over_steps_in_their_order():
    (made,) = accumulated_influence([row(8), row(0), row(4)])
    assert made.steps == (0, 4, 8)
    assert made.sums == {
        "from_chosen": [1, 6, 15],
        "from_rejected": [0, -2, -6],
        "from_history": [0.25, 0.5, 0.75],
        "predicted": [1.25, 4.5, 9.75],
        "measured": [1.375, 4.75, 10.125],
        "residual": [0.125, 0.25, 0.375],
    }
    assert made.run_change is made.change_covered is made.steps_covered is None


def test_the_share_of_the_run_that_was_recorded_is_said():
    path = [probe(10, -20.0), probe(0, -40.0), probe(5, -35.0)]
    (made,) = accumulated_influence([row(0), row(4), row(10)], path)
    assert (made.run_steps, made.run_change) == (10, 20)
    # Step 10 came after the last probe.
    covered = pytest.approx((0.2, (1.375 + 3.375) / 20))
    assert (made.steps_covered, made.change_covered) == covered


def test_every_step_recorded_covers_the_run():
    rows = [row(step) for step in range(3)]
    path = [probe(0, -9.0), probe(3, -9.0 + sum(row.measured for row in rows))]
    (made,) = accumulated_influence(rows, path)
    assert (made.steps_covered, made.change_covered) == pytest.approx((1, 1))


def test_answers_stand_apart_and_the_argmax_has_no_change_of_its_own():
    heldout = row(0).model_copy(update={"split": "heldout"})
    rows = [row(0), row(0, "argmax"), row(0, pair_id="b"), heldout]
    made = accumulated_influence(rows, [probe(0, -2.0), probe(1, -1.0)])
    assert [(one.pair_id, one.kind, one.split, one.run_change) for one in made] == [
        ("a", "chosen", "train", 1.0),
        ("a", "argmax", "train", None),
        ("b", "chosen", "train", None),
        ("a", "chosen", "heldout", None),
    ]


def test_a_run_without_change_or_length_has_no_share():
    (still,) = accumulated_influence([row(0)], [probe(0, -2.0), probe(4, -2.0)])
    assert still.steps_covered == 0.25
    assert still.change_covered is None
    (single,) = accumulated_influence([row(0)], [probe(0, -2.0)])
    assert single.steps_covered is None


def test_two_probes_of_one_step_are_no_run():
    (once,) = accumulated_influence([row(0)], [probe(0, -2.0), probe(0, -2.0)])
    assert (once.run_steps, once.run_change, once.steps_in_run) == (None, None, 0)
    assert once.measured_in_run == 0
    (repeated,) = accumulated_influence([row(0)], [probe(0, -2.0), probe(0, -2.0), probe(4, -1.0)])
    assert (repeated.run_steps, repeated.run_change, repeated.steps_in_run) == (4, 1.0, 1)
    assert repeated.measured_in_run == row(0).measured


def test_a_step_before_the_first_probe_is_not_of_the_run():
    (made,) = accumulated_influence([row(1), row(2)], [probe(2, -3.0), probe(4, -1.0)])
    assert (made.steps, made.run_steps, made.steps_in_run) == ((1, 2), 2, 1)
    assert made.measured_in_run == row(2).measured


@pytest.mark.parametrize(("second", "message"), [(row(0, stage="sft"), "stage"), (row(0), "twice")])
def test_rows_of_two_runs_are_refused(second, message):
    with pytest.raises(ConfigError, match=message):
        accumulated_influence([row(0), second])


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
    changes = [torch.tensor([0.3, -0.1]).double() * (t + 1) for t in range(3)]
    made = paper_influence(changes, terms, [[term, terms[0]] for term in terms])
    one = torch.eye(V, dtype=torch.float64)
    for t, change in enumerate(changes):
        pi, first = logits[t].softmax(-1), logits[0].softmax(-1)
        a = torch.stack([torch.linalg.matrix_norm(one - p.expand(V, V)) for p in pi]).mean()
        pulls = torch.cat([(p - one[tokens]).norm(dim=-1) for p in (pi, first)]).mean()
        assert float(made.lbk[t]) == pytest.approx(float(change.norm() / (a.sqrt() * pulls)))
        assert float(made.sign_delta[t]) == pytest.approx(float(change.mean() / (a.sqrt() * pulls)))
    smooth = moving_average(made.sign_delta)
    assert torch.allclose(made.accumulated, smooth.cumsum(0))


def test_the_moving_average_starts_at_the_first_value():
    values = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64)
    assert moving_average(values).tolist() == pytest.approx([1.0, 1.1, 0.99])
