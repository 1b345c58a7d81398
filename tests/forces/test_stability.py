"""Intervals and verdicts about kernel sizes, against arithmetic by hand and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
import torch

from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction
from dynolab.forces.kernel.size import KernelSizes, Squares, kernel_sizes
from dynolab.forces.kernel.stability import _reliability, _verdict, kernel_stability
from dynolab.objectives import SFTConfig
from dynolab.statistics import rank_correlation
from dynolab.training.config import OptimizerConfig, TrainConfig
from tests.forces.small_models import encoded, neox, pairs, train_steps


def reading(norms, error=0.0) -> KernelSizes:
    """Sizes with these norms and this relative standard error."""
    norms = np.asarray(norms, dtype=float)
    rest = norms**2 if error else np.zeros_like(norms)
    squares = Squares(norms**2 - rest, rest, (2 * error * norms**2) ** 2)
    return KernelSizes(squares, squares, rank=1, probes=8, seed=0)


def norms(seed: int, observed: int = 12, updating: int = 10) -> np.ndarray:
    rng = np.random.default_rng(seed)
    logs = rng.normal(size=(observed, 1)) + rng.normal(size=(1, updating))
    return np.exp(logs + rng.normal(size=(observed, updating)))


def test_ranks_hold_under_any_growth_that_keeps_the_order():
    K = norms(0)
    found = kernel_stability({"before": reading(K), "after": reading(3 * K**2)}, resamples=50)
    agreement = found.between("after", "before")
    assert (agreement.correlation, agreement.verdict, agreement.ceiling) == (
        pytest.approx(1.0),
        "holds",
        1.0,
    )
    np.testing.assert_allclose(agreement.growth, 3 * K - 1)


def test_unrelated_readings_break_down():
    sizes = {"a": reading(norms(0)), "b": reading(norms(1)), "c": reading(norms(0) * 2)}
    found = kernel_stability(sizes, resamples=200)
    assert [(x.first, x.second) for x in found.agreements] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [x.verdict for x in found.agreements] == ["breaks down", "holds", "breaks down"]
    agreement = found.between("a", "b")
    assert agreement.low < agreement.correlation < agreement.high < 0.8


def test_an_interval_around_the_threshold_is_unclear():
    rng = np.random.default_rng(2)
    K = norms(0, 6, 6)
    other = K * np.exp(1.0 * rng.normal(size=K.shape))
    found = kernel_stability({"a": reading(K), "b": reading(other)}, resamples=200)
    (agreement,) = found.agreements
    assert agreement.low < found.threshold < agreement.high
    assert agreement.verdict == "unclear"


def test_noise_alone_breaks_no_ranks_down():
    """A verdict from readings that cannot bear it is withheld, whichever it would be."""
    rng = np.random.default_rng(3)
    K = np.exp(0.2 * rng.normal(size=(12, 10)))
    noisy = [reading(K * np.exp(0.4 * rng.normal(size=K.shape)), error=0.4) for _ in range(2)]
    (agreement,) = kernel_stability({"a": noisy[0], "b": noisy[1]}, resamples=200).agreements
    assert agreement.high < 0.8 and agreement.ceiling < 0.8 and agreement.verdict == "unclear"
    (same,) = kernel_stability({"a": noisy[0], "b": noisy[0]}, resamples=200).agreements
    assert same.correlation == pytest.approx(1.0) and same.verdict == "unclear"


def test_the_ceiling_is_what_independent_noise_leaves_of_a_perfect_correlation():
    rng = np.random.default_rng(4)
    K = norms(5, 60, 60)
    a, b = (reading(K * np.exp(0.3 * rng.normal(size=K.shape)), error=0.3) for _ in range(2))
    (agreement,) = kernel_stability({"a": a, "b": b}, resamples=20).agreements
    assert agreement.ceiling == pytest.approx(agreement.correlation, abs=0.01)
    assert agreement.ceiling < 0.98


@pytest.mark.parametrize(
    ("sizes", "error", "reliability"),
    [
        ([1.0, np.e, np.e**2], 0.5, 0.75),
        ([1.0, np.e, np.e**2], 0.0, 1),
        ([1.0, np.e, np.e**2], 1.5, 0),
        ([2.0, 2.0, 2.0], 0.5, 0),
        ([1.0, np.e], 0.5, 0.5),
    ],
    ids=["by hand", "exact", "more noise than variance", "no variance", "the first two"],
)
def test_a_reading_is_as_reliable_as_its_errors_are_small_by_hand(sizes, error, reliability):
    """log ‖K‖ is 0, 1, 2 with variance 1, or ½ without the last; errors of ½ take ¼ from it."""
    every = np.array([[*sizes, 9.0]])
    cells = np.array([[*[True] * len(sizes), False]])
    assert _reliability(reading(every, error), "raw", cells) == pytest.approx(reliability)


def test_the_ceiling_is_the_root_of_both_reliabilities():
    norms = np.exp([[0.0, 1.0, 2.0]])
    sizes = {"a": reading(norms, error=0.5), "b": reading(norms, error=0.25)}
    (agreement,) = kernel_stability(sizes, resamples=10).agreements
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


def test_the_centred_norm_is_compared_unless_the_raw_one_is_asked_for():
    """With 1000 draws of seed 0; another seed draws another interval."""
    raw, centred = reading(norms(0)).raw_squares, reading(norms(1)).raw_squares
    other = reading(norms(2)).raw_squares
    sizes = {"a": KernelSizes(raw, centred, 1, 8, 0), "b": KernelSizes(other, other, 1, 8, 0)}
    found = kernel_stability(sizes)
    assert (found.norm, found.threshold) == ("centred", 0.8)
    (agreement,) = found.agreements
    (same,) = kernel_stability(sizes, norm="centred", resamples=1000, seed=0).agreements
    assert (agreement.low, agreement.high) == (same.low, same.high)
    assert agreement.correlation == pytest.approx(
        rank_correlation(norms(1).ravel(), norms(2).ravel())
    )
    np.testing.assert_allclose(agreement.growth, norms(2) / norms(1) - 1)
    (another,) = kernel_stability(sizes, seed=1).agreements
    assert (another.low, another.high) != (agreement.low, agreement.high)
    asked = kernel_stability(sizes, norm="raw", threshold=0.6, resamples=10)
    assert (asked.norm, asked.threshold) == ("raw", 0.6)
    (agreement,) = asked.agreements
    assert agreement.correlation == pytest.approx(
        rank_correlation(norms(0).ravel(), norms(2).ravel())
    )


def test_the_ceiling_is_of_the_norm_that_is_compared():
    exact, noisy = reading(norms(0)).raw_squares, reading(norms(0), error=0.5).raw_squares
    sizes = dict.fromkeys("ab", KernelSizes(noisy, exact, 1, 8, 0))
    ceilings = {
        norm: kernel_stability(sizes, norm=norm, resamples=10).agreements[0].ceiling
        for norm in ("raw", "centred")
    }
    assert ceilings["raw"] < 1 and ceilings["centred"] == 1


def test_three_pairs_are_enough():
    three = {"a": reading([[1.0], [2.0], [3.0]]), "b": reading([[1.0], [2.0], [5.0]])}
    assert kernel_stability(three, resamples=10).agreements[0].correlation == pytest.approx(1)


@pytest.mark.parametrize("zero", ["raw", "centred"])
def test_a_pair_that_is_not_coupled_is_refused_under_either_norm(zero):
    squares = dict.fromkeys(("raw", "centred"), reading([[0.1, 0.2], [0.3, 0.4]]).raw_squares)
    coupled = KernelSizes(*squares.values(), rank=1, probes=8, seed=0)
    squares[zero] = reading([[0.1, 0.2], [0.3, 0.0]]).raw_squares
    uncoupled = KernelSizes(*squares.values(), rank=1, probes=8, seed=0)
    kernel_stability({"a": coupled, "b": coupled}, resamples=10)
    with pytest.raises(
        ConfigError,
        match=r"sizes\[b\] = 0.0: a pair's kernel is zero; leave its response out",
    ):
        kernel_stability({"a": coupled, "b": uncoupled}, resamples=10)


def test_a_few_steps_keep_the_ranks_better_than_another_model_does():
    config = TrainConfig(
        objective=SFTConfig(),
        optimizer=OptimizerConfig(name="sgd", learning_rate=1e-3),
        engine={"kind": "plain", "ranks": 1},
    )
    model = neox(dtype=torch.float32)
    record = train_steps(model, config, pairs(3), steps=2).records[-1]
    policy = PolicyFunction(neox(dtype=torch.float32))
    responses = [encoded(seed, 3 + seed % 3, 3) for seed in range(6)]
    stranger = {name: w.detach() for name, w in neox(seed=8).float().named_parameters()}
    sizes = {
        label: kernel_sizes(policy, responses, responses, at=at)
        for label, at in {"start": None, "end": record.after, "stranger": stranger}.items()
    }
    found = kernel_stability(sizes, exclude_diagonal=True, resamples=200)
    assert found.between("start", "end").verdict == "holds"
    stranger_s = found.between("start", "stranger")
    assert stranger_s.correlation < found.between("start", "end").correlation
    assert stranger_s.verdict != "holds"


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ({"a": reading(norms(0))}, {}, "two readings"),
        ({"a": reading(norms(0)), "b": reading(norms(0, 3, 3))}, {}, "same responses"),
        (
            {"a": reading(norms(0)), "b": reading(norms(1))},
            {"exclude_diagonal": True},
            "exclude_diagonal",
        ),
        (
            {"a": reading(norms(0, 2, 1)), "b": reading(norms(1, 2, 1))},
            {},
            r"sizes = \(2, 1\): ranks need three pairs or more",
        ),
        # Without the diagonal two of four pairs are left.
        (
            {"a": reading([[1.0, 2.0], [3.0, 4.0]]), "b": reading([[1.0, 2.0], [3.0, 5.0]])},
            {"exclude_diagonal": True},
            r"sizes = \(2, 2\): ranks need three pairs or more",
        ),
        ({"a": reading(norms(0)), "b": reading(0 * norms(0))}, {}, r"sizes\[b\]"),
    ],
    ids=["one", "other shapes", "not square", "two pairs", "two off the diagonal", "no coupling"],
)
def test_readings_that_cannot_be_compared_are_refused(sizes, options, message):
    with pytest.raises(ConfigError, match=message):
        kernel_stability(sizes, resamples=10, **options)


def test_an_agreement_is_asked_for_by_labels_that_there_are():
    found = kernel_stability({"a": reading(norms(0)), "b": reading(norms(1))}, resamples=10)
    with pytest.raises(ConfigError, match="labels"):
        found.between("a", "c")


def test_a_norm_its_error_and_its_interval_by_hand():
    # ν = 2·2²/0.5 = 16, spread 2/(9·16) = 0.0138889, t₀.₉₇₅(7) = 2.364624, side 0.2786736;
    # (1 − spread ± side)³ = 2.023240 and 0.3540501.
    one = Squares(*(np.array([[x]]) for x in (1.0, 2.0, 0.5)))
    expected = 3**0.5, 0.5**0.5 / (2 * 3**0.5), 16
    assert (one.norm, one.error, one.degrees) == pytest.approx(expected)
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


def test_sizes_give_either_norm_with_its_interval():
    exact, noisy = reading(norms(0)).raw_squares, reading(norms(1), error=0.2).raw_squares
    sizes = KernelSizes(exact, noisy, rank=1, probes=8, seed=0)
    for name, squares in (("raw", exact), ("centred", noisy)):
        assert sizes.squares(name) is squares
        np.testing.assert_array_equal(getattr(sizes, name), squares.norm)
        np.testing.assert_array_equal(getattr(sizes, f"{name}_error"), squares.error)
        np.testing.assert_array_equal(sizes.interval(name), squares.interval(8))
    np.testing.assert_allclose(noisy.error, 0.2 * noisy.norm)
    np.testing.assert_array_equal(sizes.interval(), noisy.interval(8))


def spearman(x, y) -> float:
    return float(scipy.stats.spearmanr(x.ravel(), y.ravel()).statistic)


@pytest.mark.parametrize("together", [False, True])
def test_a_correlation_s_interval_redraws_both_sides(together):
    shape = (5, 5) if together else (5, 4)
    first, second = norms(0, *shape), norms(0, *shape) * norms(1, *shape)
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
