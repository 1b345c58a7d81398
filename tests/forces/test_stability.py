from __future__ import annotations

import numpy as np
import pytest
import torch

from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction
from dynolab.forces.kernel_size import KernelSizes, Squares, kernel_sizes
from dynolab.forces.stability import _drawn, kernel_stability
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
