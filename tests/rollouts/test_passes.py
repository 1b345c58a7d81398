from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest

from dynolab.errors import ConfigError
from dynolab.rollouts.passes import check_samples, pass_at_k, pass_levels


def test_it_is_the_share_of_subsets_that_hold_a_correct_sample() -> None:
    for samples in range(1, 8):
        for correct in range(samples + 1):
            marks = [True] * correct + [False] * (samples - correct)
            for k in range(1, samples + 1):
                subsets = list(combinations(marks, k))
                share = sum(map(any, subsets)) / len(subsets)
                assert pass_at_k(samples, correct, k) == pytest.approx(share, abs=1e-12)


def test_large_counts_stay_exact() -> None:
    exact = 1 - comb(9_997, 200) / comb(10_000, 200)
    assert pass_at_k(10_000, 3, 200) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(("samples", "correct", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_impossible_counts_are_refused(samples: int, correct: int, k: int) -> None:
    with pytest.raises(ConfigError, match="must lie in"):
        pass_at_k(samples, correct, k)


def test_its_mean_is_the_chance_that_k_samples_hold_a_right_one() -> None:
    chance, samples, k = 0.15, 32, 8
    correct = np.random.default_rng(0).binomial(samples, chance, size=4000)
    estimates = np.array([pass_at_k(samples, int(count), k) for count in correct])
    error = estimates.std() / len(estimates) ** 0.5
    assert estimates.mean() == pytest.approx(1 - (1 - chance) ** k, abs=3 * error)
    # Half the spread of the 0 or 1 that k samples alone would give.
    assert estimates.std() < 0.6 * (estimates.mean() * (1 - estimates.mean())) ** 0.5


def test_fewer_than_four_samples_for_each_of_k_are_refused() -> None:
    check_samples(64, 16)
    with pytest.raises(ConfigError, match=r"samples = 63.*at least 64 samples.*k to at most 15"):
        check_samples(63, 16)


def test_levels_are_powers_of_two_and_the_largest() -> None:
    levels = {k: pass_levels(k) for k in (1, 12, 16)}
    assert levels == {1: (1,), 12: (1, 2, 4, 8, 12), 16: (1, 2, 4, 8, 16)}
