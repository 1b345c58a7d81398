from __future__ import annotations

from itertools import combinations
from math import comb

import pytest

from dynolab.errors import ConfigError
from dynolab.rollouts.passes import pass_at_k


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
