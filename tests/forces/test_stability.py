"""Intervals and verdicts about kernel sizes, against arithmetic by hand and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from dynolab.errors import ConfigError
from dynolab.forces.kernel.size import KernelSizes
from dynolab.forces.kernel.stability import _verdict, kernel_stability
from dynolab.statistics import rank_correlation


def reading(norms, error=0.0) -> KernelSizes:
    """Sizes with these norms and this relative standard error."""
    norms = np.asarray(norms, dtype=float)
    return KernelSizes(norms, error * norms, norms, error * norms)


def norms(seed: int, observed: int = 12, updating: int = 10) -> np.ndarray:
    rng = np.random.default_rng(seed)
    logs = rng.normal(size=(observed, 1)) + rng.normal(size=(1, updating))
    return np.exp(logs + rng.normal(size=(observed, updating)))


def test_ranks_hold_under_any_growth_that_keeps_the_order():
    K = norms(0)
    found = kernel_stability({"before": reading(K), "after": reading(3 * K**2)}, resamples=50)
    (agreement,) = found
    assert (agreement.correlation, agreement.verdict, agreement.ceiling) == (
        pytest.approx(1.0),
        "holds",
        1.0,
    )
    np.testing.assert_allclose(agreement.growth, 3 * K - 1)


def test_unrelated_readings_break_down():
    sizes = {"a": reading(norms(0)), "b": reading(norms(1)), "c": reading(norms(0) * 2)}
    found = kernel_stability(sizes, resamples=200)
    assert [(x.first, x.second) for x in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [x.verdict for x in found] == ["breaks down", "holds", "breaks down"]
    agreement = found[0]
    assert agreement.low < agreement.correlation < agreement.high < 0.8


def test_noise_alone_breaks_no_ranks_down():
    """A verdict from readings that cannot bear it is withheld, whichever it would be."""
    rng = np.random.default_rng(3)
    K = np.exp(0.2 * rng.normal(size=(12, 10)))
    noisy = [reading(K * np.exp(0.4 * rng.normal(size=K.shape)), error=0.4) for _ in range(2)]
    (agreement,) = kernel_stability({"a": noisy[0], "b": noisy[1]}, resamples=200)
    assert agreement.high < 0.8 and agreement.ceiling < 0.8 and agreement.verdict == "unclear"
    (same,) = kernel_stability({"a": noisy[0], "b": noisy[0]}, resamples=200)
    assert same.correlation == pytest.approx(1.0) and same.verdict == "unclear"


def test_the_ceiling_is_what_independent_noise_leaves_of_a_perfect_correlation():
    rng = np.random.default_rng(4)
    K = norms(5, 60, 60)
    a, b = (reading(K * np.exp(0.3 * rng.normal(size=K.shape)), error=0.3) for _ in range(2))
    (agreement,) = kernel_stability({"a": a, "b": b}, resamples=20)
    assert agreement.ceiling == pytest.approx(agreement.correlation, abs=0.01)
    assert agreement.ceiling < 0.98


def test_the_ceiling_is_the_root_of_both_reliabilities():
    norms = np.exp([[0.0, 1.0, 2.0]])
    sizes = {"a": reading(norms, error=0.5), "b": reading(norms, error=0.25)}
    (agreement,) = kernel_stability(sizes, resamples=10)
    assert agreement.ceiling == pytest.approx((0.75 * (1 - 1 / 16)) ** 0.5)


@pytest.mark.parametrize(
    ("low", "high", "ceiling", "threshold", "verdict"),
    [
        (0.81, 0.9, 1.0, 0.8, "holds"),
        (0.8, 0.9, 1.0, 0.8, "unclear"),
        (0.1, 0.79, 1.0, 0.8, "breaks down"),
        (0.1, 0.8, 1.0, 0.8, "unclear"),
        (0.81, 0.9, 0.8, 0.8, "holds"),
        (0.81, 0.9, 0.79, 0.8, "unclear"),
        (0.1, 0.71, 0.9, 0.8, "breaks down"),
        (0.1, 0.73, 0.9, 0.8, "unclear"),
        (0.1, 0.75, 0.9, 0.8, "unclear"),
        (0.1, 0.2, 0.79, 0.8, "unclear"),
        (0.1, 0.4, 0.5, 0.8, "unclear"),
        (0.1, 0.5, 1.0, 0.5, "unclear"),
    ],
)
def test_a_verdict_is_given_where_the_whole_interval_bears_it(
    low, high, ceiling, threshold, verdict
):
    assert _verdict(low, high, ceiling, threshold) == verdict


def test_the_centred_norm_and_its_errors_are_compared():
    """With 1000 draws of seed 0; another seed draws another interval."""
    raw, centred = norms(0), norms(1)
    one = KernelSizes(raw, 0.5 * raw, centred, np.zeros_like(centred))
    sizes = {"a": one, "b": reading(norms(2))}
    (agreement,) = kernel_stability(sizes)
    (same,) = kernel_stability(sizes, resamples=1000, seed=0)
    (another,) = kernel_stability(sizes, seed=1)
    assert (agreement.low, agreement.high) == (same.low, same.high)
    assert (another.low, another.high) != (agreement.low, agreement.high)
    expected = rank_correlation(norms(1).ravel(), norms(2).ravel())
    assert agreement.correlation == pytest.approx(expected)
    assert agreement.ceiling == 1
    np.testing.assert_allclose(agreement.growth, norms(2) / norms(1) - 1)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"a": reading(norms(0))}, "two readings"),
        ({"a": reading(norms(0)), "b": reading(norms(0, 3, 3))}, "same responses"),
        (
            {"a": reading(norms(0, 2, 1)), "b": reading(norms(1, 2, 1))},
            r"sizes = \(2, 1\): ranks need three pairs or more",
        ),
        ({"a": reading(norms(0)), "b": reading(0 * norms(0))}, r"sizes\[b\]"),
    ],
    ids=["one", "other shapes", "two pairs", "no coupling"],
)
def test_readings_that_cannot_be_compared_are_refused(sizes, message):
    with pytest.raises(ConfigError, match=message):
        kernel_stability(sizes, resamples=10)


def spearman(x, y) -> float:
    return float(scipy.stats.spearmanr(x.ravel(), y.ravel()).statistic)


def test_a_correlation_s_interval_redraws_both_sides():
    shape = (5, 4)
    first, second = norms(0, *shape), norms(0, *shape) * norms(1, *shape)
    sizes = {"a": reading(first), "b": reading(second)}
    (agreement,) = kernel_stability(sizes, resamples=40, seed=3)
    rng, draws = np.random.default_rng(3), []
    for _ in range(40):
        rows = rng.integers(shape[0], size=shape[0])
        columns = rng.integers(shape[1], size=shape[1])
        cells = [(o, u) for o in rows for u in columns]
        draws.append(spearman(*(np.array([k[cell] for cell in cells]) for k in (first, second))))
    assert agreement.correlation == pytest.approx(spearman(first, second))
    ends = np.quantile(draws, [0.025, 0.975])
    assert (agreement.low, agreement.high) == pytest.approx(tuple(ends))
    np.testing.assert_allclose(agreement.growth, second / first - 1)
