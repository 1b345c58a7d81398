from __future__ import annotations

import numpy as np
import pytest
import torch

from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction
from dynolab.forces.kernel.size import KernelSizes, Squares, kernel_sizes
from dynolab.forces.kernel.stability import _drawn, _reliability, _verdict, kernel_stability
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
    one = found.between("after", "before")
    assert (one.correlation, one.verdict, one.ceiling) == (pytest.approx(1.0), "holds", 1.0)
    np.testing.assert_allclose(one.growth, 3 * K - 1)


def test_unrelated_readings_break_down():
    sizes = {"a": reading(norms(0)), "b": reading(norms(1)), "c": reading(norms(0) * 2)}
    found = kernel_stability(sizes, resamples=200)
    assert [(x.first, x.second) for x in found.agreements] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [x.verdict for x in found.agreements] == ["breaks down", "holds", "breaks down"]
    one = found.between("a", "b")
    assert one.low < one.correlation < one.high < 0.8


def test_an_interval_around_the_threshold_is_unclear():
    rng = np.random.default_rng(2)
    K = norms(0, 6, 6)
    other = K * np.exp(1.0 * rng.normal(size=K.shape))
    found = kernel_stability({"a": reading(K), "b": reading(other)}, resamples=200)
    (one,) = found.agreements
    assert one.low < found.threshold < one.high
    assert one.verdict == "unclear"


def test_noise_alone_breaks_no_ranks_down():
    """A verdict from readings that cannot bear it is withheld, whichever it would be."""
    rng = np.random.default_rng(3)
    K = np.exp(0.2 * rng.normal(size=(12, 10)))
    noisy = [reading(K * np.exp(0.4 * rng.normal(size=K.shape)), error=0.4) for _ in range(2)]
    (one,) = kernel_stability({"a": noisy[0], "b": noisy[1]}, resamples=200).agreements
    assert one.high < 0.8 and one.ceiling < 0.8 and one.verdict == "unclear"
    (same,) = kernel_stability({"a": noisy[0], "b": noisy[0]}, resamples=200).agreements
    assert same.correlation == pytest.approx(1.0) and same.verdict == "unclear"


def test_the_ceiling_is_what_independent_noise_leaves_of_a_perfect_correlation():
    rng = np.random.default_rng(4)
    K = norms(5, 60, 60)
    a, b = (reading(K * np.exp(0.3 * rng.normal(size=K.shape)), error=0.3) for _ in range(2))
    (one,) = kernel_stability({"a": a, "b": b}, resamples=20).agreements
    assert one.ceiling == pytest.approx(one.correlation, abs=0.01)
    assert one.ceiling < 0.98


def test_redrawn_responses_make_a_wider_interval_than_redrawn_pairs():
    rng = np.random.default_rng(6)
    rows = rng.normal(size=(2, 10, 1))
    first, second = (np.exp(2 * r + rng.normal(size=(10, 12))) for r in rows)
    (one,) = kernel_stability({"a": reading(first), "b": reading(second)}).agreements
    drawn = [rng.integers(120, size=120) for _ in range(500)]
    cells = [rank_correlation(first.ravel()[i], second.ravel()[i]) for i in drawn]
    low, high = np.quantile(cells, [0.025, 0.975])
    assert one.high - one.low > 1.5 * (high - low)


def test_the_diagonal_is_left_out_on_request():
    rng = np.random.default_rng(7)
    first, second = (np.exp(rng.normal(size=(15, 15)) + 20 * np.eye(15)) for _ in range(2))
    sizes = {"a": reading(first), "b": reading(second)}
    (whole,) = kernel_stability(sizes, resamples=100).agreements
    (off,) = kernel_stability(sizes, resamples=100, exclude_diagonal=True).agreements
    kept = ~np.eye(15, dtype=bool)
    assert off.correlation == pytest.approx(rank_correlation(first[kept], second[kept]))
    assert off.correlation < whole.correlation - 0.1


def test_one_set_of_responses_is_redrawn_on_both_sides_together():
    together = [draw for cells in _drawn((6, 6), True, 50, 0) for draw in zip(*cells, strict=True)]
    assert len(together) == 50
    for rows, columns in together:
        assert set(rows) == set(columns) and (rows != columns).all()
    ((every_row, every_column),) = _drawn((6, 6), False, 50, 0)
    assert every_row.shape == every_column.shape == (50, 36)
    assert any(set(r) != set(c) for r, c in zip(every_row, every_column, strict=True))


def test_every_response_of_both_sides_is_redrawn_to_its_own_number():
    ((rows, columns),) = _drawn((5, 3), False, 40, 0)
    assert rows.shape == columns.shape == (40, 15)
    assert set(rows.ravel()) == set(range(5)) and set(columns.ravel()) == set(range(3))
    for drawn, side in ((rows, 3), (columns, 5)):
        # A draw holds each of its rows once per column, and the other way round.
        assert all((np.bincount(draw) % side == 0).all() for draw in drawn)
    for again, same in (
        (_drawn((5, 3), False, 40, 0), True),
        (_drawn((5, 3), False, 40, 1), False),
    ):
        assert np.array_equal(again[0][0], rows) == same


def test_a_reading_is_as_reliable_as_its_errors_are_small_by_hand():
    # log ‖K‖ is 0, 1, 2 with variance (1 + 0 + 1)/2 = 1; errors of ½ leave 1 − ¼.
    cells = np.ones((1, 3), dtype=bool)
    norms = np.exp([[0.0, 1.0, 2.0]])
    assert _reliability(reading(norms, error=0.5), "raw", cells) == pytest.approx(0.75)
    assert _reliability(reading(norms), "raw", cells) == 1
    # More noise than there is variance; and no variance to be noise of.
    assert _reliability(reading(norms, error=1.5), "raw", cells) == 0
    assert _reliability(reading([[2.0, 2.0, 2.0]], error=0.5), "raw", cells) == 0
    # Of the first two: variance ½.
    cells[0, 2] = False
    assert _reliability(reading(norms, error=0.5), "raw", cells) == pytest.approx(0.5)


def test_the_ceiling_is_the_root_of_both_reliabilities():
    norms = np.exp([[0.0, 1.0, 2.0]])
    sizes = {"a": reading(norms, error=0.5), "b": reading(norms, error=0.25)}
    (one,) = kernel_stability(sizes, resamples=10).agreements
    assert one.ceiling == pytest.approx((0.75 * (1 - 1 / 16)) ** 0.5)


@pytest.mark.parametrize(
    ("low", "high", "ceiling", "verdict"),
    [
        (0.81, 0.9, 1.0, "holds"),
        (0.8, 0.9, 1.0, "unclear"),
        (0.81, 0.9, 0.8, "holds"),
        (0.81, 0.9, 0.79, "unclear"),
        (0.1, 0.71, 0.9, "breaks down"),
        (0.1, 0.75, 0.9, "unclear"),
        (0.1, 0.4, 0.5, "unclear"),
    ],
)
def test_a_verdict_is_given_where_the_whole_interval_bears_it(low, high, ceiling, verdict):
    assert _verdict(low, high, ceiling, 0.8) == verdict


def test_an_interval_that_ends_at_the_threshold_is_not_below_it():
    assert _verdict(0.1, 0.5, 1.0, 0.5) == "unclear"


def test_the_centred_norm_is_compared_unless_the_raw_one_is_asked_for():
    """With 1000 draws of seed 0; another seed draws another interval."""
    raw, centred = reading(norms(0)).raw_squares, reading(norms(1)).raw_squares
    other = reading(norms(2)).raw_squares
    sizes = {"a": KernelSizes(raw, centred, 1, 8, 0), "b": KernelSizes(other, other, 1, 8, 0)}
    found = kernel_stability(sizes)
    assert (found.norm, found.threshold) == ("centred", 0.8)
    (one,) = found.agreements
    (same,) = kernel_stability(sizes, norm="centred", resamples=1000, seed=0).agreements
    assert (one.low, one.high) == (same.low, same.high)
    assert one.correlation == pytest.approx(rank_correlation(norms(1).ravel(), norms(2).ravel()))
    np.testing.assert_allclose(one.growth, norms(2) / norms(1) - 1)
    (another,) = kernel_stability(sizes, seed=1).agreements
    assert (another.low, another.high) != (one.low, one.high)
    asked = kernel_stability(sizes, norm="raw", threshold=0.6, resamples=10)
    assert (asked.norm, asked.threshold) == ("raw", 0.6)
    (one,) = asked.agreements
    assert one.correlation == pytest.approx(rank_correlation(norms(0).ravel(), norms(2).ravel()))


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
    # Without the diagonal two of four pairs are left.
    two = {"a": reading([[1.0, 2.0], [3.0, 4.0]]), "b": reading([[1.0, 2.0], [3.0, 5.0]])}
    with pytest.raises(ConfigError, match=r"sizes = \(2, 2\): ranks need three pairs or more"):
        kernel_stability(two, exclude_diagonal=True, resamples=10)


@pytest.mark.parametrize("zero", ["raw", "centred"])
def test_a_pair_that_is_not_coupled_is_refused_under_either_norm(zero):
    some, none = (np.array([[0.1, 0.2], [0.3, least]]) for least in (0.4, 0.0))
    squares = {"raw": reading(some).raw_squares, "centred": reading(some).raw_squares}
    coupled = KernelSizes(*squares.values(), rank=1, probes=8, seed=0)
    squares[zero] = reading(none).raw_squares
    uncoupled = KernelSizes(*squares.values(), rank=1, probes=8, seed=0)
    kernel_stability({"a": coupled, "b": coupled}, resamples=10)
    with pytest.raises(
        ConfigError,
        match=r"sizes\[b\] = 0.0: a pair is not coupled at all; leave its response out",
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


def test_readings_that_cannot_be_compared_are_refused():
    with pytest.raises(ConfigError, match="two readings"):
        kernel_stability({"a": reading(norms(0))})
    with pytest.raises(ConfigError, match="same responses"):
        kernel_stability({"a": reading(norms(0)), "b": reading(norms(0, 3, 3))})
    with pytest.raises(ConfigError, match="exclude_diagonal"):
        kernel_stability({"a": reading(norms(0)), "b": reading(norms(1))}, exclude_diagonal=True)
    with pytest.raises(ConfigError, match="three pairs"):
        kernel_stability({"a": reading(norms(0, 2, 1)), "b": reading(norms(1, 2, 1))})
    with pytest.raises(ConfigError, match=r"sizes\[b\]"):
        kernel_stability({"a": reading(norms(0)), "b": reading(0 * norms(0))})
    found = kernel_stability({"a": reading(norms(0)), "b": reading(norms(1))}, resamples=10)
    with pytest.raises(ConfigError, match="labels"):
        found.between("a", "c")
