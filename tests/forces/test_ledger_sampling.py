"""Which steps are drawn, and how well totals over all steps are estimated from them."""

from __future__ import annotations

import numpy as np
import pytest

from dynolab.forces.ledger.watched import sampled_steps
from dynolab.statistics import stratified_total


def test_every_step_stands_for_itself_where_all_are_taken():
    assert sampled_steps([0, 1, 3], 1, seed=0) == {0: 1, 1: 1, 3: 1}
    assert sampled_steps([4, 5], 10, seed=0) == {4: 1, 5: 1}


@pytest.mark.parametrize("seed", range(3))
def test_the_ends_are_taken_and_each_stretch_has_a_step(seed):
    steps = list(range(0, 200, 2))
    weights = sampled_steps(steps, 10, seed)
    assert list(weights) == sorted(weights)
    assert weights[0] == weights[198] == 1
    assert sum(weights.values()) == len(steps)
    inner = list(weights)[1:-1]
    for number, step in enumerate(inner):
        assert step in steps[1 + 10 * number : 11 + 10 * number]


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
