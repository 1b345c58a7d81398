"""Intervals and verdicts about kernel sizes, against arithmetic by hand and plain loops."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
import scipy

from dynolab.forces.kernel.size import KernelSizes, Squares
from dynolab.forces.kernel.stability import (
    KernelStability,
    _reliability,
    _verdict,
    kernel_stability,
)


def reading(norms: np.ndarray, error: float = 0.0) -> KernelSizes:
    """Sizes with these centred norms, twice as large uncentred, and this relative error."""

    def squares(size: np.ndarray) -> Squares:
        rest = size**2 if error else np.zeros_like(size)
        return Squares(size**2 - rest, rest, (2 * error * size**2) ** 2)

    return KernelSizes(squares(2 * norms), squares(norms), rank=1, probes=8, seed=0)


def random_norms(seed: int, rows: int = 5, columns: int = 4) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(size=(rows, columns)))


def test_a_norm_its_error_and_its_interval_by_hand() -> None:
    # ν = 2·2²/0.5 = 16, spread 2/(9·16) = 0.0138889, t₀.₉₇₅(7) = 2.364624, side 0.2786736;
    # (1 − spread ± side)³ = 2.023240 and 0.3540501.
    one = Squares(*(np.array([[x]]) for x in (1.0, 2.0, 0.5)))
    assert one.norm == pytest.approx(3**0.5)
    assert one.error == pytest.approx(0.5**0.5 / (2 * 3**0.5))
    assert one.degrees == pytest.approx(16)
    low, high = one.interval(8)
    assert float(low[0, 0]) == pytest.approx((1 + 2 / 2.023240) ** 0.5, abs=1e-5)
    assert float(high[0, 0]) == pytest.approx((1 + 2 / 0.3540501) ** 0.5, abs=1e-4)
    exact = Squares(*(np.array([[x]]) for x in (4.0, 0.0, 0.0)))
    assert (exact.norm, exact.error, exact.degrees) == (2, 0, np.inf)
    assert [float(end[0, 0]) for end in exact.interval(8)] == [2, 2]
    nothing = Squares(*(np.zeros((1, 1)),) * 3)
    assert (nothing.norm, nothing.error) == (0, 0)
    both = one + exact
    assert (both.exact, both.rest, both.variance) == (5, 2, 0.5)


def test_sizes_give_either_norm_with_its_interval() -> None:
    sizes = reading(random_norms(0), error=0.2)
    np.testing.assert_allclose(sizes.raw, 2 * sizes.centred)
    np.testing.assert_allclose(sizes.raw_error, 2 * sizes.centred_error)
    np.testing.assert_allclose(sizes.centred_error, 0.2 * sizes.centred)
    assert sizes.squares("raw") is sizes.raw_squares
    np.testing.assert_array_equal(sizes.interval(), sizes.centred_squares.interval(8))
    np.testing.assert_array_equal(sizes.interval("raw"), sizes.raw_squares.interval(8))


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    return float(scipy.stats.spearmanr(x.ravel(), y.ravel()).statistic)


@pytest.mark.parametrize("together", [False, True])
def test_a_correlation_s_interval_redraws_both_sides(together: bool) -> None:
    shape = (5, 5) if together else (5, 4)
    first, second = random_norms(0, *shape), random_norms(0, *shape) * random_norms(1, *shape)
    found = kernel_stability(
        {"a": reading(first), "b": reading(second)},
        exclude_diagonal=together,
        resamples=40,
        seed=3,
    )
    rng, draws = np.random.default_rng(3), []
    for _ in range(40):
        rows = rng.integers(shape[0], size=shape[0])
        columns = rows if together else rng.integers(shape[1], size=shape[1])
        cells = [(o, u) for o in rows for u in columns if not together or o != u]
        draws.append(spearman(*(np.array([k[cell] for cell in cells]) for k in (first, second))))
    kept = ~np.eye(5, dtype=bool) if together else np.ones(shape, dtype=bool)
    (agreement,) = found.agreements
    assert agreement.correlation == pytest.approx(spearman(first[kept], second[kept]))
    ends = np.quantile(draws, [0.025, 0.975])
    assert (agreement.low, agreement.high) == pytest.approx(tuple(ends))
    np.testing.assert_allclose(agreement.growth, second / first - 1)
    assert (found.norm, found.threshold, agreement.ceiling) == ("centred", 0.8, 1.0)
    again = kernel_stability(
        {"a": reading(first), "b": reading(second)},
        exclude_diagonal=together,
        resamples=40,
        seed=3,
        norm="raw",
        threshold=0.5,
    )
    assert isinstance(again, KernelStability)
    assert (again.norm, again.threshold) == ("raw", 0.5)
    assert again.agreements[0].correlation == pytest.approx(agreement.correlation)


def test_reliability_is_the_share_of_variance_that_is_no_noise() -> None:
    norms = random_norms(2)
    cells = np.ones(norms.shape, dtype=bool)
    spread = statistics.variance(np.log(norms).ravel())
    assert _reliability(reading(norms), "centred", cells) == 1
    assert _reliability(reading(norms, 0.3), "centred", cells) == pytest.approx(1 - 0.09 / spread)
    assert _reliability(reading(norms, 5.0), "raw", cells) == 0
    assert _reliability(reading(np.ones((2, 2)), 0.1), "raw", np.ones((2, 2), dtype=bool)) == 0
    some = cells.copy()
    some[0] = False
    spread = statistics.variance(np.log(norms[1:]).ravel())
    assert _reliability(reading(norms, 0.3), "raw", some) == pytest.approx(1 - 0.09 / spread)


@pytest.mark.parametrize(
    ("low", "high", "ceiling", "verdict"),
    [
        (0.81, 0.9, 1.0, "holds"),
        (0.8, 0.9, 1.0, "unclear"),
        (0.1, 0.79, 1.0, "breaks down"),
        (0.1, 0.8, 1.0, "unclear"),
        (0.1, 0.71, 0.9, "breaks down"),
        (0.1, 0.73, 0.9, "unclear"),
        (0.81, 0.9, 0.8, "holds"),
        (0.81, 0.9, 0.79, "unclear"),
        (0.1, 0.2, 0.79, "unclear"),
    ],
)
def test_a_verdict_needs_the_whole_interval_and_a_ceiling(
    low: float, high: float, ceiling: float, verdict: str
) -> None:
    assert _verdict(low, high, ceiling, 0.8) == verdict
