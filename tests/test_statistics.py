"""Every kind of interval, rank correlation and area, against values computed by hand."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy
from sklearn.metrics import roc_auc_score

from dynolab.statistics import (
    RESAMPLES,
    Interval,
    auc,
    band,
    bootstrap,
    clear,
    lds,
    mean_interval,
    over_seeds_and_pairs,
    partial_rank_correlation,
    percentile_ends,
    rank_correlation,
    ratio_interval,
    share_interval,
    student_975,
    unexplained_share,
)

NAN = float("nan")


@pytest.mark.parametrize(
    ("degrees", "value"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (10, 2.2281), (30, 2.0423)]
)
def test_students_t_is_that_of_the_printed_tables(degrees: int, value: float) -> None:
    assert student_975(degrees) == pytest.approx(value, abs=5e-5)


def test_a_mean_has_the_t_interval_of_its_measured_pairs() -> None:
    # Of 2, 4, 6 (one pair is not measured): mean 4, s² = (4 + 0 + 4)/2 = 4, s/√3 = 1.154701,
    # t₀.₉₇₅(2) = 4.302653, half width 4.968275.
    interval = mean_interval(np.array([2.0, NAN, 4.0, 6.0]))
    assert (interval.mean, interval.n) == (4.0, 3)
    assert (interval.low, interval.high) == pytest.approx((4 - 4.968275, 4 + 4.968275), abs=1e-6)


def test_a_mean_of_two_pairs_has_an_interval_and_of_one_none() -> None:
    # Of 1 and 2: s = √½, s/√2 = ½, t₀.₉₇₅(1) = 12.706205.
    two = mean_interval(np.array([1.0, 2.0]))
    assert (two.low, two.high) == pytest.approx((1.5 - 6.353102, 1.5 + 6.353102), abs=1e-6)
    lone = mean_interval(np.array([3.0, np.inf]))
    assert (lone.mean, lone.n) == (3.0, 1) and math.isnan(lone.low) and math.isnan(lone.high)
    none = mean_interval(np.array([NAN]))
    assert none.n == 0 and all(map(math.isnan, (none.mean, none.low, none.high)))


def test_intervals_of_means_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    intervals = [mean_interval(rng.normal(3.0, 2.0, 6)) for _ in range(1000)]
    assert 0.93 < np.mean([i.low < 3.0 < i.high for i in intervals]) < 0.97


def test_a_band_is_the_interval_at_every_step() -> None:
    values = np.array([[1.0, 2.0, 6.0], [NAN, NAN, NAN], [0.0, 1.0, NAN]])
    ends = np.stack(band(values), axis=1)
    each = [mean_interval(row) for row in values]
    np.testing.assert_array_equal(ends, [(step.mean, step.low, step.high) for step in each])


def test_wilsons_interval_by_hand() -> None:
    # 3 of 10, z = 1.959964, z² = 3.841459: centre (0.3 + 3.841459/20)/1.3841459 = 0.355507,
    # half width 1.959964/1.3841459 · √(0.3·0.7/10 + 3.841459/400) = 0.247716.
    interval = share_interval(3, 10)
    assert (interval.mean, interval.n) == (0.3, 10)
    assert (interval.low, interval.high) == pytest.approx((0.107791, 0.603222), abs=1e-6)


def test_wilsons_ends_are_where_the_share_is_z_standard_errors_away() -> None:
    """Standard errors at the end p, not at the share p̂."""
    for hits, n in ((7, 72), (36, 72), (1, 5)):
        interval = share_interval(hits, n)
        assert interval.low < interval.mean == hits / n < interval.high
        for end in (interval.low, interval.high):
            error = (end * (1 - end) / n) ** 0.5
            assert abs(interval.mean - end) / error == pytest.approx(1.959964, rel=1e-5)


def test_a_share_of_none_or_all_ends_at_zero_or_one() -> None:
    # All of n: the lower end is n/(n + z²) = 72/75.841459.
    assert share_interval(0, 72).low == 0 and share_interval(72, 72).high == 1
    assert share_interval(72, 72).low == pytest.approx(0.949349, abs=1e-6)
    assert share_interval(0, 72).high == pytest.approx(1 - 0.949349, abs=1e-6)
    nothing = share_interval(0, 0)
    assert nothing.n == 0 and all(map(math.isnan, (nothing.mean, nothing.low, nothing.high)))


def test_trials_hit_in_part_lie_between_the_whole_hits_around_them() -> None:
    interval = share_interval(2.5, 5)
    assert (interval.mean, interval.n) == (0.5, 5)
    assert (interval.low, interval.high) == (share_interval(2, 5).low, share_interval(3, 5).high)


def test_a_ratio_has_the_jackknifes_interval_over_pairs() -> None:
    parts, wholes = np.array([1.0, 0.0, 2.0, 1.0]), np.array([2.0, 1.0, 2.0, 3.0])
    interval = ratio_interval(parts, wholes, np.array(["a", "a", "b", "c"]))
    # Pairs: 1/3, 2/2, 1/3 of 4/8. Without a: 3/5, without b: 2/6, without c: 3/5. Their mean is
    # 23/45, Σ(·−mean)² = 2·(4/45)² + (8/45)² = 96/2025, spread √(2/3 · 96/2025) = 0.177778,
    # times t₀.₉₇₅(2) = 4.302653: 0.764916.
    assert (interval.mean, interval.n) == (0.5, 3)
    assert (interval.low, interval.high) == pytest.approx((-0.264916, 1.264916), abs=1e-6)


def test_a_ratio_without_a_spread_over_pairs_has_no_interval() -> None:
    lone = ratio_interval(np.array([1.0, 2.0]), np.array([4.0, 4.0]), np.array(["a", "a"]))
    assert (lone.mean, lone.n) == (3 / 8, 1) and math.isnan(lone.low) and math.isnan(lone.high)
    # Without pair a nothing is left to divide by.
    whole = ratio_interval(np.array([1.0, 0.0]), np.array([2.0, 0.0]), np.array(["a", "b"]))
    assert (whole.mean, whole.n) == (0.5, 2) and math.isnan(whole.low) and math.isnan(whole.high)
    for wholes in (np.zeros(0), np.zeros(2)):
        empty = ratio_interval(wholes, wholes, np.arange(wholes.size))
        assert empty.n == 0 and all(map(math.isnan, (empty.mean, empty.low, empty.high)))


def test_an_unexplained_share_by_hand() -> None:
    # Σ(measured − predicted)² = 0 + 1, Σ measured² = 9 + 16; the last two rows are not measured.
    measured, predicted = np.array([3.0, 4.0, NAN, 1.0]), np.array([3.0, 3.0, 1.0, NAN])
    interval = unexplained_share(measured, predicted, np.array(["a", "b", "c", "d"]))
    assert (interval.mean, interval.n) == (pytest.approx(1 / 25), 2)
    # Without a: 1/16, without b: 0. Spread √(½ · 2 · (1/32)²) = 1/32, t₀.₉₇₅(1) = 12.706205.
    ends = (1 / 25 - 12.706205 / 32, 1 / 25 + 12.706205 / 32)
    assert (interval.low, interval.high) == pytest.approx(ends, abs=1e-6)


def test_what_is_left_over_counts_by_its_square_whatever_its_sign() -> None:
    # Σ(measured − predicted)² = 4 + 9, Σ measured² = 1 + 25.
    measured, predicted = np.array([1.0, 5.0]), np.array([3.0, 2.0])
    assert unexplained_share(measured, predicted, np.array(["a", "b"])).mean == 13 / 26


def test_a_ratio_divides_by_no_zero() -> None:
    """A pair that alone holds the whole leaves no ratio without it, and no warning either."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lone = ratio_interval(np.array([1.0, 0.0]), np.array([2.0, 0.0]), np.array(["a", "b"]))
        assert math.isnan(lone.low) and math.isnan(lone.high)
        # One is no zero: without a 0/1, without b 1/1, of 1/2. Spread √(½ · 2 · ¼) = ½.
        even = ratio_interval(np.array([1.0, 0.0]), np.ones(2), np.array(["a", "b"]))
    assert (even.low, even.high) == pytest.approx((0.5 - 6.353102, 0.5 + 6.353102), abs=1e-6)


def test_an_interval_is_clear_on_one_side_of_zero_alone() -> None:
    assert clear(Interval(2, 1, 3, 5)) and clear(Interval(-2, -3, -1, 5))
    assert not clear(Interval(1, 0, 2, 5)) and not clear(Interval(-1, -2, 0, 5))
    assert not clear(Interval(1, NAN, NAN, 1))
    unknown = {"mean": None, "low": None, "high": None, "n": 0}
    assert Interval(NAN, NAN, np.inf, 0).as_dict() == unknown
    assert Interval(2, 1, 3, 5).as_dict() == {"mean": 2, "low": 1, "high": 3, "n": 5}
    assert Interval(2, 1, 3, 5).times(0.5) == Interval(1, 0.5, 1.5, 5)


def test_the_bootstrap_of_a_mean_is_scipys() -> None:
    values = np.random.default_rng(3).normal(size=30)
    ends = bootstrap(lambda at: values[at].mean(-1), 30)
    assert ends == pytest.approx(
        tuple(
            scipy.stats.bootstrap(
                (values,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=0
            ).confidence_interval
        )
    )
    # As wide as ±1.96 standard errors.
    assert ends[1] - ends[0] == pytest.approx(2 * 1.96 * values.std() / 30**0.5, rel=0.08)


def test_the_bootstrap_leaves_out_draws_that_have_no_statistic() -> None:
    values = np.array([0.0, 1.0, 2.0, 3.0])

    def upper_share(at: np.ndarray) -> np.ndarray:
        """Not a number where only the first item was drawn."""
        total = values[at].sum(-1)
        return np.divide((values[at] ** 2).sum(-1), total, out=total * NAN, where=total > 0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        low, high = bootstrap(upper_share, 4)
        assert all(map(math.isnan, bootstrap(lambda at: np.full(len(at), NAN), 4)))
    assert 1 <= low < high <= 3
    assert all(map(math.isnan, bootstrap(lambda at: values[at].mean(-1), 1)))


def test_two_items_are_enough_to_redraw() -> None:
    # A quarter of the draws is the first item twice, a quarter the second twice.
    values = np.array([1.0, 2.0])
    assert bootstrap(lambda at: values[at].mean(-1), 2) == (1, 2)


@pytest.mark.parametrize("layout", ["crossed", "half", "nested"])
def test_an_interval_over_seeds_and_pairs_covers_as_often_as_it_says(layout: str) -> None:
    """x_sp = a_s + b_p + e_sp with 5 seeds of 40 pairs, of which all, half or none are the same."""
    rng = np.random.default_rng(0)
    step = {"crossed": 0, "half": 20, "nested": 40}[layout]
    names = [range(seed * step, seed * step + 40) for seed in range(5)]
    covered, alone, squares = 0, 0, []
    for _ in range(400):
        pairs = rng.normal(0, 2, 200)
        values = [rng.normal(0, 0.5) + pairs[[*seed]] + rng.normal(0, 1, 40) for seed in names]
        both = over_seeds_and_pairs(lambda seed, at, of=values: of[seed][at].mean(-1), names)
        seeds = mean_interval([of_seed.mean() for of_seed in values])
        covered += both.low < 0 < both.high
        alone += seeds.low < 0 < seeds.high
        # Student's half over seeds, and the normal one of what these share.
        shared = ((both.high - both.mean) ** 2 - (seeds.high - seeds.mean) ** 2) / 1.96**2
        squares.append(((seeds.high - seeds.mean) / 2.7764) ** 2 + shared)
    # Variance of the mean: of seeds, of pairs by how often each is there, and of single values.
    counts = np.bincount(np.concatenate([[*seed] for seed in names]))
    variance = 0.25 / 5 + 4 * ((counts / 200) ** 2).sum() + 1 / 200
    assert np.mean(squares) == pytest.approx(variance, rel=0.1)
    assert covered >= 0.93 * 400
    assert (layout == "nested") == (alone == covered) and (alone < 350) == (layout == "crossed")
    assert both.pairs == (None if layout == "nested" else 40 + 4 * step)


def test_few_pairs_have_no_interval_over_seeds_and_pairs() -> None:
    def mean_of(seed: int, drawn: np.ndarray) -> np.ndarray:
        return np.array([[1.0, 2.0], [3.0, 4.0]])[seed][drawn].mean(-1)

    single = over_seeds_and_pairs(mean_of, [["a"], ["a"]])
    assert single.mean == 2 and math.isnan(single.low) and single.pairs == 1
    assert over_seeds_and_pairs(mean_of, [[], []]).n == 0


def test_the_interval_of_two_seeds_on_the_same_pairs_by_hand() -> None:
    # Means 3 and 2: s²/2 = 1/4. Cov(T_1, T_2) = Cov((1, 2, 6), (1, 1, 4)) / 3 = 4.5 / 3.
    values = np.array([[1.0, 2, 6], [1, 1, 4]])
    interval = over_seeds_and_pairs(
        lambda seed, at: values[seed][at].mean(-1), [["a", "b", "c"]] * 2
    )
    half = np.hypot(12.7062 * 0.5, 1.96 * 1.5**0.5)
    assert (interval.mean, interval.n, interval.pairs) == (2.5, 2, 3)
    assert interval.high - interval.mean == pytest.approx(half, rel=1e-4)


def test_a_datamodeling_score_has_an_interval_over_groups() -> None:
    rng = np.random.default_rng(0)
    predicted, measured = rng.normal(size=(2, 4, 100))
    score, low, high = lds(predicted, measured)
    assert score == pytest.approx(rank_correlation(predicted, measured).mean())
    # Four values, each with a rank correlation of standard error 1/√99.
    assert (high - low) / 2 == pytest.approx(1.96 / (99 * 4) ** 0.5, rel=0.3)
    assert low < score < high
    assert lds(predicted, predicted) == pytest.approx((1, 1, 1))
    assert np.isnan(lds(predicted[:, :2], measured[:, :2])).all()


def test_percentile_ends_by_hand() -> None:
    # The 2.5% and 97.5% places of 0..200 are 5 and 195.
    draws = np.concatenate([np.arange(201.0)[::-1], [NAN, np.inf]])
    assert percentile_ends(draws) == (5, 195)
    assert all(map(math.isnan, percentile_ends(np.array([NAN]))))


def test_rank_correlation_of_a_few_numbers_by_hand() -> None:
    # Ranks (1, 2.5, 2.5, 4) and (2, 1, 3, 4), less 2.5: products 0.75 + 2.25, squares 4.5 and 5.
    correlation = rank_correlation(np.array([1, 5, 5, 9]), np.array([2.0, 1, 3, 4]))
    assert correlation == pytest.approx(3 / np.sqrt(4.5 * 5))


def test_rank_correlation_is_that_of_every_draw() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 6, (20, 40)).astype(np.float32)
    y = x + rng.integers(0, 5, (20, 40))
    expected = [scipy.stats.spearmanr(*draw).statistic for draw in zip(x, y, strict=True)]
    np.testing.assert_allclose(rank_correlation(x, y), expected, atol=1e-12)


def test_without_an_order_there_is_no_rank_correlation() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(rank_correlation(np.ones(3), np.arange(3.0)))
        assert np.isnan(rank_correlation(np.ones((2, 1)), np.ones((2, 1)))).tolist() == [True] * 2
    assert rank_correlation(np.array([1.0, 2.0]), np.array([4.0, 3.0])) == -1


def test_single_values_have_no_rank_correlation_draw_by_draw() -> None:
    """One number a draw, as many axes as the draws have."""
    for draws in ((), (2,), (2, 3)):
        correlations = rank_correlation(np.ones((*draws, 1)), np.ones((*draws, 1)))
        assert correlations.shape == draws and np.isnan(correlations).all()


def test_a_partial_rank_correlation_is_that_of_what_the_third_leaves_of_the_ranks() -> None:
    rng = np.random.default_rng(5)
    x, y, given = rng.normal(size=(3, 4, 30))
    x, y = x + given, y - 0.5 * given

    def left(values: np.ndarray, third: np.ndarray) -> np.ndarray:
        ranks, others = scipy.stats.rankdata(values), scipy.stats.rankdata(third)
        slope, start = np.polyfit(others, ranks, 1)
        rest: np.ndarray = ranks - start - slope * others
        return rest

    expected = [
        np.corrcoef(left(x[draw], given[draw]), left(y[draw], given[draw]))[0, 1]
        for draw in range(4)
    ]
    assert partial_rank_correlation(x, y, given) == pytest.approx(expected)
    assert float(partial_rank_correlation(x[0], y[0], given[0])) == pytest.approx(expected[0])


def test_what_a_third_orders_alike_has_no_partial_rank_correlation() -> None:
    x, y = np.arange(5.0), np.array([1.0, 3, 2, 5, 4])
    assert math.isnan(partial_rank_correlation(x, y, 2 * x))
    assert math.isnan(partial_rank_correlation(x, y, np.zeros(5)))


def test_the_area_under_the_curve_by_hand() -> None:
    # Positives 1 and 3 against 0, 1, 2: wins 1 + ½ + 0 and 3, of 6 couples.
    scores, positive = np.array([1.0, 3, 0, 1, 2]), np.array([True, True, False, False, False])
    assert auc(scores, positive) == pytest.approx(4.5 / 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(auc(scores, positive & False)) and np.isnan(auc(scores, positive | True))


def test_one_positive_and_one_negative_make_an_area() -> None:
    scores = np.array([[2.0, 1.0], [1.0, 2.0], [1.0, 1.0]])
    assert auc(scores, np.array([[True, False]] * 3)).tolist() == [1, 0, 0.5]


def test_the_areas_of_many_draws_are_scikit_learns() -> None:
    rng = np.random.default_rng(1)
    scores, positive = rng.integers(5, size=(20, 40)), rng.random((20, 40)) < 0.4
    each = [roc_auc_score(*draw) for draw in zip(positive, scores, strict=True)]
    np.testing.assert_allclose(auc(scores, positive), each)
    np.testing.assert_allclose(auc(-scores, positive), 1 - auc(scores, positive))
