"""Means over pairs with 95% intervals. The pair is the unit: its answers share a prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy import ndarray

_NORMAL_975 = 1.959963984540054
_SMALL_SAMPLE = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764}


@dataclass(frozen=True)
class Interval:
    """A mean with its 95% interval over `n` pairs; not a number where there is none."""

    mean: float
    low: float
    high: float
    n: int

    def as_dict(self) -> dict[str, float | int | None]:
        """For JSON, which has no NaN."""
        low, mean, high = (x if np.isfinite(x) else None for x in (self.low, self.mean, self.high))
        return {"mean": mean, "low": low, "high": high, "n": self.n}


def student_975(degrees: int) -> float:
    """The 97.5% point of Student's t.

    `t = z + (z³+z)/4ν + (5z⁵+16z³+3z)/96ν² + (3z⁷+19z⁵+17z³−15z)/384ν³`, exact values below ν = 5
    (Abramowitz & Stegun 26.7.5; the error is below 0.003 from there on).
    """
    if degrees in _SMALL_SAMPLE:
        return _SMALL_SAMPLE[degrees]
    z, v = _NORMAL_975, float(degrees)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def mean_interval(values: Float[ndarray, pairs]) -> Interval:
    """`x̄ ± t₀.₉₇₅(n−1) · s/√n` over the pairs that were measured (the finite ones).

    Of paired quantities pass the differences. One pair has a mean and no interval.
    """
    values = values[np.isfinite(values)]
    n = values.size
    if n == 0:
        return Interval(np.nan, np.nan, np.nan, 0)
    mean = float(values.mean())
    if n == 1:
        return Interval(mean, np.nan, np.nan, 1)
    half = student_975(n - 1) * float(values.std(ddof=1)) / n**0.5
    return Interval(mean, mean - half, mean + half, n)


def share_interval(hits: float, n: int) -> Interval:
    """A share `p = hits/n` of independent trials with Wilson's 95% interval.

    Trials may be hit in part: a quantity within [0, 1] spreads no more than a share of its mean.

    `(p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n)` (Wilson 1927), sound at shares of 0 and 1.
    """
    if n == 0:
        return Interval(np.nan, np.nan, np.nan, 0)
    share, square = hits / n, _NORMAL_975**2
    middle = share + square / (2 * n)
    half = _NORMAL_975 * (share * (1 - share) / n + square / (4 * n**2)) ** 0.5
    scale = 1 + square / n
    # Rounding must not leave a bound beside the 0 or 1 that it is.
    low = 0.0 if hits == 0 else (middle - half) / scale
    high = 1.0 if hits == n else (middle + half) / scale
    return Interval(share, low, high, n)


def clear(change: Interval) -> bool:
    """Whether the interval lies wholly on one side of zero."""
    return change.low > 0 or change.high < 0


def band(
    values: Float[ndarray, "steps pairs"],
) -> tuple[Float[ndarray, steps], Float[ndarray, steps], Float[ndarray, steps]]:
    """Mean, lower and upper end of the interval at every step; NaN where no pair was measured."""
    each = [mean_interval(row) for row in values]
    return (
        np.array([e.mean for e in each]),
        np.array([e.low for e in each]),
        np.array([e.high for e in each]),
    )


RESAMPLES = 1000


def bootstrap(statistic: Callable[[Int[ndarray, n]], float], n: int) -> tuple[float, float]:
    """Ends of the 95% percentile interval over redrawn items; not numbers where none is finite.

    **Arguments:** `statistic`: of the items at some places; where it is not a number, that draw
    is left out. The draws are the same for every statistic of n items.
    """
    rng = np.random.default_rng(0)
    again = np.array([statistic(rng.integers(n, size=n)) for _ in range(RESAMPLES)])
    again = again[np.isfinite(again)]
    if not again.size:
        return float("nan"), float("nan")
    low, high = np.quantile(again, [0.025, 0.975])
    return float(low), float(high)


def unexplained_share(
    measured: Float[ndarray, rows],
    predicted: Float[ndarray, rows],
    pair: Shaped[ndarray, rows],
) -> Interval:
    """Share of the measured change that a prediction leaves over; predicting no change leaves 1.

    `1 − R² = Σ(measured − predicted)² / Σ measured²`, as a ratio over pairs (`ratio_interval`).
    """
    finite = np.isfinite(measured) & np.isfinite(predicted)
    squares = measured[finite] ** 2
    return ratio_interval((measured[finite] - predicted[finite]) ** 2, squares, pair[finite])


def ratio_interval(
    parts: Float[ndarray, rows], wholes: Float[ndarray, rows], pair: Shaped[ndarray, rows]
) -> Interval:
    """`Σ parts / Σ wholes` with the jackknife's 95% interval over pairs.

    `± t·√((n−1)/n · Σ_i (ratio₍₋ᵢ₎ − mean)²)`: rows of one pair are not independent.
    """
    names, index = np.unique(pair, return_inverse=True)
    n = names.size
    if n == 0 or wholes.sum() == 0:
        return Interval(np.nan, np.nan, np.nan, 0)
    sums = np.bincount(index, parts, n)
    totals = np.bincount(index, wholes, n)
    whole = float(sums.sum() / totals.sum())
    if n == 1:
        return Interval(whole, np.nan, np.nan, 1)
    rest = totals.sum() - totals
    if (rest == 0).any():
        return Interval(whole, np.nan, np.nan, n)
    without = (sums.sum() - sums) / rest
    spread = ((n - 1) / n * ((without - without.mean()) ** 2).sum()) ** 0.5
    half = student_975(n - 1) * float(spread)
    return Interval(whole, whole - half, whole + half, n)
