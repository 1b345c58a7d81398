"""The second order of a change of the weights, and the radius that follows from it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from dynolab.data.encode import Encoder
from dynolab.forces import PolicyFunction, step_validity
from dynolab.forces.function.views import View
from dynolab.forces.step.one_step import second_order
from dynolab.forces.step.step_forces import Start, crossing
from dynolab.results.forces import UNEXPLAINED
from dynolab.training.config import OptimizerConfig
from tests.forces.small_models import direction, encoded, llama, neox, recorded, relative
from tests.forces.test_step_forces import PROBES, Numbers

H = 1e-4


def moved(place, change, s):
    return {name: w + s * change[name] if name in change else w for name, w in place.items()}


@pytest.fixture(params=["neox", "llama", "tempered"])
def case(request):
    model = llama(dtype=torch.float64) if request.param == "llama" else neox()
    policy = PolicyFunction(model, torch.float64)
    batch = policy.batch([encoded(0), encoded(1, response=3)])
    if request.param == "tempered":
        batch = replace(batch, temperature=0.7)
    view = View.realised(batch).beside(View.argmax(policy.logits({}, batch)))
    return policy, direction(model, 0.02), batch, view


def test_both_orders_are_those_of_differences(case):
    policy, change, batch, view = case
    place = policy.weights
    made = second_order(policy, place, change, batch, view)
    first = policy.change_along(place, [change], batch, view=view)[0]
    ahead, behind = (
        policy.change_along(moved(place, change, s), [change], batch, view=view)[0] for s in (H, -H)
    )
    assert relative(made.first, first) < 1e-12
    assert relative(2 * (made.jacobian + made.softmax), (ahead - behind) / (2 * H)) < 1e-6
    assert (made.softmax <= 0).all()


def test_the_exact_softmax_departs_from_both_orders_with_the_third_power(case):
    policy, change, batch, view = case
    made = second_order(policy, policy.weights, change, batch, view)
    errors = [
        (made.change(s) - s * made.first - s**2 * (made.jacobian + made.softmax)).norm()
        for s in (1e-2, 2e-2)
    ]
    assert float(errors[1] / errors[0]) == pytest.approx(8, rel=0.1)


def test_a_share_crosses_its_bound_between_two_multiples():
    multiples = [1.0, 2.0, 4.0, 8.0]
    assert crossing(multiples, [1e-4 * s**2 for s in multiples], 4e-4) == pytest.approx(2)
    assert crossing(multiples, [1e-4 * s**2 for s in multiples], 9e-4) == pytest.approx(3)
    assert math.isnan(crossing(multiples, [1e-4] * 4, 1e-3))
    assert math.isnan(crossing(multiples, [1e-2] * 4, 1e-3))


def validity(optimizer, dtype=torch.float64):
    record = recorded(neox(), optimizer, count=3)
    policy = PolicyFunction(neox(), dtype)
    return step_validity(record, policy, PROBES, Encoder(Numbers(), 32, "drop"), stage="dpo")


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_steps_radius_predicts_where_longer_steps_leave_first_order(optimizer):
    rate = 1e-2 if optimizer == "sgd" else 1e-3
    made = validity(OptimizerConfig(name=optimizer, learning_rate=rate))
    assert made.answers == len(PROBES) + 2  # the argmax of both chosen answers
    assert made.predicted > 1
    assert made.unexplained < UNEXPLAINED
    assert 0.5 < made.predicted / made.measured < 2
    assert math.isfinite(made.softmax)


def test_changes_of_several_steps_start_from_the_first_ones_weights():
    momentum = OptimizerConfig(name="sgd", learning_rate=1e-2, momentum=0.9)
    before, record = (recorded(neox(), momentum, count=3, steps=steps) for steps in (1, 2))
    policy, encoder = PolicyFunction(neox(), torch.float64), Encoder(Numbers(), 32, "drop")
    own, path = (
        step_validity(record, policy, PROBES, encoder, stage="dpo", since=since)
        for since in (None, Start(0, before.before))
    )
    assert (own.since, path.since, path.step) == (None, 0, 1)
    assert path.unexplained > own.unexplained
