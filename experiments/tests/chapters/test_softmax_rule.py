"""One step on one softmax, against autograd and on random cases."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st

from experiments.chapters.squeezing.cases import (
    STATEMENTS,
    Cases,
    count_violations,
    poor_gain,
    random_cases,
    rich_lose,
)
from experiments.chapters.squeezing.claims import softmax_verdicts
from experiments.chapters.squeezing.softmax import (
    first_order,
    likeliest_other,
    panels,
    regression_steps,
    rises,
    shape_points,
    stepped,
    stepped_elsewhere,
    stepped_with_features,
)

TRENDS = {
    "peakier_more_fall",
    "rarer_best_gains_more",
    "rarer_best_shares_more",
    "rich_get_richer",
    "poor_get_poorer",
    "features_best_rises",
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


@pytest.mark.parametrize("rate", [0.7, -0.7])
def test_regression_steps_are_gradient_steps_on_the_weights(rate: float) -> None:
    weights, x, label = normal(7, 4), normal(4, seed=1), 2
    trained = weights.clone().requires_grad_()
    for _ in range(3):
        loss = -(trained @ x).log_softmax(-1)[label]
        (gradient,) = torch.autograd.grad(loss, trained)
        trained = (trained - rate * gradient).detach().requires_grad_()
    found = regression_steps(weights, x, label, rate, 3)
    torch.testing.assert_close(found, (trained @ x).log_softmax(-1).detach())


def test_the_first_order_is_the_derivative_of_the_step() -> None:
    logp = normal(5, 6).log_softmax(-1)
    label = torch.tensor([0, 1, 2, 3, 5])

    def change(size: torch.Tensor) -> torch.Tensor:
        return stepped(logp, label, size.expand(5))

    zero = torch.zeros((), dtype=torch.float64)
    _, slope = torch.func.jvp(change, (zero,), (torch.ones_like(zero),))
    torch.testing.assert_close(first_order(logp, label, 1.0), slope)
    torch.testing.assert_close(first_order(logp, label, -2.0), -2 * slope)
    pushed = first_order(logp, label, -1.0) > 0
    assert torch.equal(rises(logp, label), pushed)


def test_a_step_of_each_row_is_that_row_s_step() -> None:
    logp, label = normal(3, 6).log_softmax(-1), torch.tensor([1, 4, 0])
    sizes = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    found = stepped(logp, label, sizes)
    for row, size in enumerate(sizes.tolist()):
        torch.testing.assert_close(found[row], stepped(logp[row], label[row], size))
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(3, dtype=torch.float64))


def test_the_likeliest_other_class_is_never_the_label() -> None:
    logp = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]).log()
    assert likeliest_other(logp, torch.tensor([0, 0])).tolist() == [1, 2]


def test_a_head_s_step_moves_other_contexts_as_its_gradient_does() -> None:
    head = normal(6, 3)
    observed, updated = normal(3, seed=1), normal(3, seed=2)
    label, rate = torch.tensor(4), -0.3
    leaf = head.clone().requires_grad_()
    loss = -(leaf @ updated).log_softmax(-1)[label]
    (gradient,) = torch.autograd.grad(loss, leaf)
    expected = ((head - rate * gradient) @ observed).log_softmax(-1)
    found = stepped_elsewhere(
        (head @ observed).log_softmax(-1),
        (head @ updated).log_softmax(-1),
        label,
        rate * float(observed @ updated),
    )
    torch.testing.assert_close(found, expected)


def test_features_move_by_their_own_gradient() -> None:
    head, feature, label = normal(6, 3), normal(3, seed=1), torch.tensor(4)
    leaves = head.clone().requires_grad_(), feature.clone().requires_grad_()
    loss = -(leaves[0] @ leaves[1]).log_softmax(-1)[label]
    by_head, by_feature = torch.autograd.grad(loss, leaves)
    expected = ((head + 0.2 * by_head) @ (feature + 0.2 * by_feature)).log_softmax(-1)
    torch.testing.assert_close(stepped_with_features(head, feature, label, -0.2), expected)


@pytest.mark.parametrize("classes", [3, 50])
def test_what_is_said_of_every_case_has_no_violation(classes: int) -> None:
    found = {one["statement"]: one for one in count_violations(1_000, classes, seed=7)}
    assert set(found) == set(STATEMENTS)
    assert {name for name, one in found.items() if one["violations"]} <= TRENDS
    # Of three classes y may hold so much that no other has more than a third.
    of_all = [one for name, one in found.items() if name != "rich_get_richer"]
    assert {one["cases"] for one in of_all} == {1_000}
    assert 500 < found["rich_get_richer"]["cases"] <= 1_000


def case(probabilities: list[float], label: int, step: float) -> Cases:
    logp = torch.tensor([probabilities], dtype=torch.float64).log()
    return Cases(
        logp, torch.tensor([label]), torch.tensor([step], dtype=torch.float64), generator()
    )


def test_who_is_rich_and_who_is_poor_in_a_case_worked_out_by_hand() -> None:
    # Σ p² = 0.422, p_y = 0.1: to first order a class rises where p_i > 0.322. So one of the two
    # others above 1/5 falls, and both below the median, 0.135.
    pushed = case([0.6, 0.22, 0.1, 0.05, 0.03], 2, 1e-4)
    assert rich_lose(pushed).tolist() == [0.5]
    assert poor_gain(pushed).tolist() == [0.0]
    # Where y holds nearly all, no other class is rich, and all rise.
    alone = case([0.02, 0.95, 0.01, 0.015, 0.005], 1, 1e-4)
    assert rich_lose(alone).isnan().all()
    assert poor_gain(alone).tolist() == [1.0]


def test_the_authors_claim_that_a_rarer_label_feeds_the_likeliest_more_is_refuted() -> None:
    counts = pd.DataFrame(count_violations(1_000, 50, seed=7))
    outcomes = {one.id.removeprefix("softmax/"): one.outcome for one in softmax_verdicts(counts)}
    assert outcomes["rarer_best_gains_more"] == "fails"
    assert outcomes["rarer_best_shares_more"] == "holds"
    assert outcomes["rich_get_richer"] == outcomes["poor_get_poorer"] == "holds"
    # By hand, p_y = 0.5 and 0.1 under a push of size one: i* gains 0.125 and 0.085.
    gains = []
    for p_y in (0.5, 0.1):
        rest = (1 - p_y) / 0.5
        pushed = case([0.3 * rest, 0.2 * rest, p_y], 2, 1.0)
        after = (pushed.logp + pushed.moved).exp()
        gains.append(float(after[0, 0] - 0.3 * rest))
    assert gains[1] < gains[0]


def test_a_wrong_statement_is_found_out() -> None:
    cases = random_cases(500, 50, generator())
    everything_else_rises = (cases.moved > 0) | ~cases.others()
    assert not everything_else_rises.all(1).all()


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.floats(-20, 20), min_size=3, max_size=9),
    place=st.integers(0, 8),
    size=st.floats(1e-3, 20),
)
def test_the_pushed_class_falls_and_the_likeliest_other_does_not(
    logits: list[float], place: int, size: float
) -> None:
    logp = torch.tensor([logits], dtype=torch.float64).log_softmax(-1)
    label = torch.tensor([place % len(logits)])
    change = (stepped(logp, label, -size) - logp)[0]
    assert change[label[0]] <= 1e-12
    assert change[likeliest_other(logp, label)[0]] >= -1e-12
    assert (change[~rises(logp, label)[0]] <= 1e-12).all()


def test_the_panels_are_what_they_are_called() -> None:
    up, flat, flank, valley = panels(50, seed=0)
    rose = [one["after"][one["label"]] > one["before"][one["label"]] for one in (up, flat, flank)]
    assert rose == [True, False, False]
    ranks = sorted(flank["before"], reverse=True)
    assert flank["before"][flank["label"]] == ranks[1]
    assert valley["before"][valley["label"]] == ranks[-1]
    assert max(flat["before"]) < max(flank["before"])


def test_curves_of_shape_hold_shares_and_rise_with_the_label_s_rarity() -> None:
    points = list(shape_points(200, 50, seed=0))
    assert all(0 <= one["fall_low"] <= one["fall"] <= one["fall_high"] <= 1 for one in points)
    falls = [one["fall"] for one in points if one["shape"] == "label_probability"]
    assert falls == sorted(falls, reverse=True)
