"""Intervals, rank correlations and areas under ROC curves: scipy's, under the field's names.

scipy loads its `stats`, which takes about a second, when a function here first uses it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray

RESAMPLES = 1000
LDS_DRAWS = 2000
NORMAL_975 = 1.959964


@dataclass(frozen=True)
class Interval:
    """A mean with its 95% interval over `n` pairs; NaN where there is none.

    `pairs`: how many different pairs the n seeds measured, where the interval is over both.
    """

    mean: float
    low: float
    high: float
    n: int
    pairs: int | None = None

    def as_dict(self) -> dict[str, float | int | None]:
        """The fields for JSON, with None for NaN; `pairs` only where it counts."""
        low, mean, high = (x if np.isfinite(x) else None for x in (self.low, self.mean, self.high))
        fields: dict[str, float | int | None] = {
            "mean": mean,
            "low": low,
            "high": high,
            "n": self.n,
        }
        return fields if self.pairs is None else fields | {"pairs": self.pairs}

    def times(self, factor: float) -> Interval:
        """Converts to another unit; the factor must be positive."""
        low, high = factor * self.low, factor * self.high
        return replace(self, mean=factor * self.mean, low=low, high=high)


@cache
def student_975(degrees: int) -> float:
    """The 97.5% point of Student's t with `degrees` degrees of freedom."""
    return float(scipy.stats.t.ppf(0.975, degrees))


def column(rows: Iterable[object], name: str) -> Float[ndarray, " rows"]:
    """One number of every row; NaN where it is None."""
    return np.array([getattr(row, name) for row in rows], dtype=float)


def mean_interval(values: Float[ndarray, " pairs"] | Sequence[float]) -> Interval:
    """`x̄ ± t₀.₉₇₅(n−1) · s/√n` over the measured (finite) pairs.

    The pair is the unit, because its answers share a prompt. For paired quantities, pass the
    differences. A single pair has a mean but no interval.
    """
    numbers = values if isinstance(values, ndarray) else np.array(values, dtype=float)
    measured = numbers[np.isfinite(numbers)]
    n = measured.size
    if n == 0:
        return Interval(np.nan, np.nan, np.nan, 0)
    mean = float(measured.mean())
    if n == 1:
        return Interval(mean, np.nan, np.nan, 1)
    half = student_975(n - 1) * float(measured.std(ddof=1)) / n**0.5
    return Interval(mean, mean - half, mean + half, n)


def band(
    values: Float[ndarray, "steps pairs"],
) -> tuple[Float[ndarray, " steps"], Float[ndarray, " steps"], Float[ndarray, " steps"]]:
    """Mean, lower and upper end of the interval at every step; NaN where no pair was measured."""
    steps = [mean_interval(row) for row in values]
    return (
        np.array([step.mean for step in steps]),
        np.array([step.low for step in steps]),
        np.array([step.high for step in steps]),
    )


EQUAL_ENOUGH = 5
"""So many equal values on one side of a bound tell it: by chance they lie there once in 2⁵."""


def all_equal_and_few(interval: Interval) -> bool:
    """Whether its values are equal and few: an interval without width says nothing then.

    Shares of few prompts are often equal for two seeds.
    """
    return 1 < interval.n < EQUAL_ENOUGH and interval.high - interval.low <= 1e-9


def clear(change: Interval) -> bool:
    """Whether the interval lies wholly on one side of zero, and has a width that says so."""
    return (change.low > 0 or change.high < 0) and not all_equal_and_few(change)


def share_interval(hits: float, n: int) -> Interval:
    """A share `hits/n` of independent trials with Wilson's 95% interval.

    Hits may be fractional: a quantity in [0, 1] varies no more than a 0/1 one of the same mean.
    The lower end is then that of ⌊hits⌋, the upper end that of ⌈hits⌉.
    """
    if n == 0:
        return Interval(np.nan, np.nan, np.nan, 0)
    below, above = (
        scipy.stats.binomtest(int(count), n).proportion_ci(method="wilson")
        for count in (np.floor(hits), np.ceil(hits))
    )
    return Interval(hits / n, float(below.low), float(above.high), n)


def stratified_total(values: Float[ndarray, " strata"], sizes: Int[ndarray, " strata"]) -> Interval:
    """`Σ_k n_k y_k`, a total over strata in a row of which one value y_k each was drawn.

    `± t₀.₉₇₅(K−1) · √(Σ_k n_k (n_k − 1) s²)`, `s² = Σ_k (y_k − y_{k+1})² / (2 (K − 1))` over the K
    strata with n_k > 1: differences of neighbours estimate the variance within a stratum, and a
    trend widens the interval (Wolter, Introduction to Variance Estimation, 2007, 8.2). Strata of
    one value add no variance.
    """
    total = float((sizes * values).sum())
    drawn = sizes > 1
    count = int(drawn.sum())
    if count == 0:
        return Interval(total, total, total, len(values))
    if count == 1:
        return Interval(total, np.nan, np.nan, len(values))
    drawn_values, size = values[drawn], sizes[drawn].astype(float)
    variance = (np.diff(drawn_values) ** 2).sum() / (2 * (count - 1))
    half = student_975(count - 1) * float((size * (size - 1)).sum() * variance) ** 0.5
    return Interval(total, total - half, total + half, len(values))


def ratio_interval(
    parts: Float[ndarray, " rows"], wholes: Float[ndarray, " rows"], pair: Shaped[ndarray, " rows"]
) -> Interval:
    """`Σ parts / Σ wholes` with the jackknife's 95% interval over pairs.

    `± t₀.₉₇₅(n−1) · √((n−1)/n · Σ_i (ratio₍₋ᵢ₎ − mean)²)` (Tukey 1958): rows of one pair are not
    independent.
    """
    names, index = np.unique(pair, return_inverse=True)
    n = names.size
    if n == 0 or wholes.sum() == 0:
        return Interval(np.nan, np.nan, np.nan, 0)
    sums = np.bincount(index, parts)
    totals = np.bincount(index, wholes)
    ratio = float(sums.sum() / totals.sum())
    if n == 1:
        return Interval(ratio, np.nan, np.nan, 1)
    rest = totals.sum() - totals
    if (rest == 0).any():
        return Interval(ratio, np.nan, np.nan, n)
    without = (sums.sum() - sums) / rest
    spread = ((n - 1) / n * ((without - without.mean()) ** 2).sum()) ** 0.5
    half = student_975(n - 1) * float(spread)
    return Interval(ratio, ratio - half, ratio + half, n)


def unexplained_share(
    measured: Float[ndarray, " rows"],
    predicted: Float[ndarray, " rows"],
    pair: Shaped[ndarray, " rows"],
) -> Interval:
    """Share of the measured change that a prediction misses; predicting no change misses 1.

    `1 − R² = Σ(measured − predicted)² / Σ measured²`, as a ratio over pairs (`ratio_interval`).
    """
    finite = np.isfinite(measured) & np.isfinite(predicted)
    squares = measured[finite] ** 2
    return ratio_interval((measured[finite] - predicted[finite]) ** 2, squares, pair[finite])


def bootstrap(
    statistic: Callable[[Int[ndarray, "draws n"]], Float[ndarray, " draws"]], n: int
) -> tuple[float, float]:
    """Ends of the bootstrap's 95% percentile interval over n items; NaN for fewer than two.

    **Arguments:** `statistic`: maps every draw's item indices to one value; NaN values are left
    out. The draws are the same for every statistic of n items.
    """
    if n < 2:
        return np.nan, np.nan
    with warnings.catch_warnings():
        # One NaN draw makes scipy's own interval NaN; its other draws remain usable.
        warnings.simplefilter("ignore", scipy.stats.DegenerateDataWarning)
        redrawn = scipy.stats.bootstrap(
            (np.arange(n),),
            lambda indices, axis: statistic(indices),
            method="percentile",
            n_resamples=RESAMPLES,
            rng=np.random.default_rng(0),
        )
    return percentile_ends(redrawn.bootstrap_distribution)


def over_seeds_and_pairs(
    statistic: Callable[[int, Int[ndarray, "draws pairs"]], Float[ndarray, " draws"]],
    pairs: Sequence[Sequence[Hashable]],
) -> Interval:
    """Mean over seeds of a statistic of pairs, with a 95% interval over seeds and pairs.

    Seeds that measure the same pairs vary together with these, which their spread does not show:

        Var = s²/n + mean over seeds s ≠ t of Cov(T_s, T_t)

    is unbiased whether all pairs, some or none are in several seeds; of none it is Student's
    interval over seeds, `mean_interval`. The covariance is the jackknife's over pairs. `pairs` of
    the result counts different ones, and is None where seeds share none.

    **Arguments:**

    - `statistic`: of a seed, maps every draw's indices of its pairs to one value.
    - `pairs`: names of every seed's pairs; a name stands for the same pair in every seed.
    """
    places = {name: place for place, name in enumerate(dict.fromkeys(chain(*pairs)))}
    seeds = len(pairs)
    values = np.full(seeds, np.nan)
    influences = np.zeros((seeds, len(places)))
    for seed, names in enumerate(pairs):
        count = len(names)
        if not count:
            continue
        values[seed] = statistic(seed, np.arange(count)[None])[0]
        others = np.nonzero(~np.eye(count, dtype=bool))[1].reshape(count, count - 1)
        without = statistic(seed, others) if count > 1 else np.array([np.nan])
        influence = ((count - 1) / count) ** 0.5 * (without - without.mean())
        influences[seed, [places[name] for name in names]] = influence
    over_seeds = mean_interval(values)
    if len(places) == sum(map(len, pairs)):
        return over_seeds
    shared = influences @ influences.T
    covariance = (shared.sum() - shared.trace()) / (seeds * (seeds - 1))
    half = np.hypot(over_seeds.high - over_seeds.mean, NORMAL_975 * max(covariance, 0.0) ** 0.5)
    low, high = over_seeds.mean - half, over_seeds.mean + half
    return replace(over_seeds, low=float(low), high=float(high), pairs=len(places))


def percentile_ends(draws: Float[ndarray, " draws"]) -> tuple[float, float]:
    """Ends of the 95% percentile interval of the finite draws; NaN if there are none."""
    draws = draws[np.isfinite(draws)]
    if not draws.size:
        return np.nan, np.nan
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def rank_correlation(
    x: Shaped[ndarray, "*draws values"], y: Shaped[ndarray, "*draws values"]
) -> Float[ndarray, "*draws"] | np.float64:
    """Spearman's ρ of every draw, ties at their mean rank; NaN where x or y is constant.

    Returns a scalar if there is no draws axis.
    """
    if x.shape[-1] < 2:
        return np.full(x.shape[:-1], np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.stats.DegenerateDataWarning)
        return scipy.stats.spearmanrho(x.astype(float), y.astype(float), axis=-1).statistic


def partial_rank_correlation(
    x: Shaped[ndarray, "*draws values"],
    y: Shaped[ndarray, "*draws values"],
    given: Shaped[ndarray, "*draws values"],
) -> Float[ndarray, "*draws"]:
    """Spearman's ρ of x and y with the ranks of a third quantity held fixed.

    `ρ_xy·z = (ρ_xy − ρ_xz ρ_yz) / √((1 − ρ_xz²)(1 − ρ_yz²))` (Kendall 1942); NaN where one of them
    is constant or orders the values as the third does.
    """
    both = rank_correlation(x, y)
    of_x, of_y = rank_correlation(x, given), rank_correlation(y, given)
    rest = np.asarray((1 - of_x**2) * (1 - of_y**2))
    nan = np.full_like(rest, np.nan)
    return np.divide(both - of_x * of_y, np.sqrt(np.maximum(rest, 0)), out=nan, where=rest > 1e-12)


def lds(
    predicted: Float[ndarray, "values groups"], measured: Float[ndarray, "values groups"]
) -> tuple[float, float, float]:
    """The linear datamodeling score (Park et al., arXiv 2303.14186), and its 95 % interval.

    The mean over values of the rank correlation of both over groups; the interval is of a bootstrap
    over groups. NaN below three groups.
    """
    count = predicted.shape[1]
    if count < 3:
        return float("nan"), float("nan"), float("nan")
    draws = np.random.default_rng(0).integers(count, size=(LDS_DRAWS, count))
    scores = np.array(
        [
            rank_correlation(forecast[draws], change[draws])
            for forecast, change in zip(predicted, measured, strict=True)
        ]
    )
    score = float(np.nanmean(rank_correlation(predicted, measured)))
    low, high = np.nanpercentile(np.nanmean(scores, axis=0), [2.5, 97.5])
    return score, float(low), float(high)


def auc(
    scores: Float[ndarray, "*draws items"], positive: Bool[ndarray, "*draws items"]
) -> Float[ndarray, "*draws"]:
    """Area under the ROC curve: how often a positive item has the greater score; ties count half.

    `(Σ₊ rank − n₊(n₊ + 1)/2) / (n₊ n₋)` (Mann & Whitney 1947), for every draw; NaN where all or
    none are positive.
    """
    ranks = scipy.stats.rankdata(scores, axis=-1)
    positives = positive.sum(-1, dtype=float)
    pairs = positives * (positive.shape[-1] - positives)
    wins = np.where(positive, ranks, 0).sum(-1) - positives * (positives + 1) / 2
    return np.divide(wins, pairs, out=np.full_like(pairs, np.nan), where=pairs > 0)
