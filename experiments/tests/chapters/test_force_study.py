"""The study of forces: its numbers are those of a step taken by hand; claims read them right."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from dynolab.errors import ConfigError
from dynolab.statistics import rank_correlation
from experiments.chapters.classification.claims import assess_forces, off_diagonal, window
from experiments.chapters.classification.forces import (
    ForceStudyConfig,
    first_of_each_class,
    pulls,
    study_forces,
)
from experiments.chapters.classifiers.many import SGDConfig, batch_order
from experiments.chapters.images import ImageConfig, ImageSplits, load_images
from experiments.chapters.page import select
from experiments.chapters.vision import build_classifier
from experiments.tests.chapters.plain import train

Tables = dict[str, pd.DataFrame]

CONFIG = ForceStudyConfig(
    training=SGDConfig(learning_rate=0.01, epochs=2),
    learning_rates=(0.01, 0.1),
    epochs=(0, 1, 2),
    watched=2,
    influence_epochs=2,
)


@pytest.fixture(scope="module")
def data() -> ImageSplits:
    return load_images(ImageConfig(train=96, validation=10, test=60))


@pytest.fixture(scope="module")
def found(data: ImageSplits) -> Tables:
    return studied(data, CONFIG, (0, 1))


def studied(data: ImageSplits, config: ForceStudyConfig, seeds: tuple[int, ...]) -> Tables:
    tables = study_forces(partial(build_classifier, "mlp"), "mlp", data, config, seeds)
    return {name: pd.DataFrame(rows) for name, rows in tables.items()}


def trained(data: ImageSplits, rate: float, seed: int, steps: int) -> torch.nn.Module:
    model = build_classifier("mlp", data.train.shape, 10, seed)
    order = batch_order(len(data.train), CONFIG.training, seed)[:steps]
    own = CONFIG.training.model_copy(update={"learning_rate": rate})
    train(model, data.train.pixels, data.train.labels, order, own)
    return model


def test_a_state_is_that_of_the_network_trained_alone(data: ImageSplits, found: Tables) -> None:
    (state,) = select(found["states"], learning_rate=0.1, seed=1, epoch=1).itertuples()
    model, after = (trained(data, 0.1, 1, steps) for steps in (3, 4))
    observed, updating = (first_of_each_class(data, split, 2) for split in ("test", "train"))
    with torch.no_grad():
        logits = model(data.test.pixels)
        before, moved = (m(observed.pixels).log_softmax(-1) for m in (model, after))
    right = (logits.argmax(-1) == data.test.labels).float().mean()
    assert state.accuracy == pytest.approx(float(right))
    assert np.allclose(
        state.pulls, pulls(model, observed, updating, 10, 0.1 / 32), rtol=1e-3, atol=1e-7
    )
    of_three = logits.softmax(-1)[data.test.labels == 3].mean(0)
    assert np.allclose(state.predictions[3], of_three, atol=1e-5)
    size = float((moved - before).square().mean().sqrt())
    assert state.change == pytest.approx(size, rel=1e-3)


def test_first_order_tells_what_small_steps_did(found: Tables) -> None:
    small = select(found["states"], learning_rate=0.01)
    assert (small[small.epoch < 2].unexplained < 1e-2).all()
    assert (found["influence"].unexplained < 1e-2).all()
    assert select(found["states"], epoch=2).unexplained.isna().all()
    for row in found["influence"].itertuples():
        total = np.array(row.from_class).sum(0)
        assert np.allclose(total, row.measured, rtol=0.1, atol=0.02)


def test_ranks_are_those_of_pairs_of_classes(found: Tables) -> None:
    states = select(found["states"], learning_rate=0.1, seed=0).set_index("epoch")
    own = {epoch: np.array(kernel) for epoch, kernel in states.kernel.items()}
    (row,) = select(found["ranks"], learning_rate=0.1, seed=0, first=0, second=2).itertuples()
    assert np.allclose(own[0], own[0].T, rtol=1e-3)
    pairs = np.triu_indices(10)
    assert row.correlation == rank_correlation(own[0][pairs], own[2][pairs])
    assert row.growth == pytest.approx(float(np.median(own[2][pairs] / own[0][pairs])) - 1)


def test_a_learning_rate_that_diverges_is_told_and_leaves_the_others_as_they_are(
    data: ImageSplits, found: Tables
) -> None:
    wild = CONFIG.model_copy(update={"learning_rates": (0.01, 0.1, 1e20)})
    again = studied(data, wild, (0, 1))
    assert again["diverged"][["learning_rate", "seed"]].values.tolist() == [[1e20, 0], [1e20, 1]]
    for name in ("states", "ranks"):
        assert set(again[name].learning_rate) == {0.01, 0.1}
    assert again["states"].accuracy.to_list() == found["states"].accuracy.to_list()


def test_a_main_learning_rate_that_diverges_is_refused(data: ImageSplits) -> None:
    training = CONFIG.training.model_copy(update={"learning_rate": 1e20})
    blown = CONFIG.model_copy(update={"training": training, "learning_rates": (1e20,)})
    with pytest.raises(ConfigError, match=r"training\.learning_rate = 1e\+20: mlp diverges at st"):
        studied(data, blown, (0,))


def test_a_class_with_too_few_images_to_watch_is_refused() -> None:
    few = load_images(ImageConfig(train=96, validation=10, test=15))
    with pytest.raises(ConfigError, match=r"forces\.watched = 2: a class has 1 images in test"):
        first_of_each_class(few, "test", 2)


def state(seed: int, pull: np.ndarray, epoch: int = 1) -> dict[str, Any]:
    run = {"network": "mlp", "learning_rate": 0.1, "seed": seed, "epoch": epoch}
    return run | {"unexplained": 0.01, "predictions": pull.T.tolist(), "pulls": pull.tolist()}


def tables(states: list[dict[str, Any]], correlation: float) -> Tables:
    """The states, and five seeds' kernels from this rank correlation up."""
    run = {"network": "mlp", "learning_rate": 0.1, "first": 1, "second": 2}
    ranks = [
        run | {"seed": n, "correlation": correlation + n / 100, "growth": 1 + n / 10}
        for n in range(5)
    ]
    rows = {"states": states, "ranks": ranks, "influence": []}
    return {name: pd.DataFrame(own) for name, own in rows.items()}


def test_claims_read_the_pairing_of_classes() -> None:
    generator = np.random.default_rng(0)
    half = generator.random((10, 10))
    symmetric = half + half.T
    symmetric[4, 9] = symmetric[9, 4] = 9
    states = [
        state(seed, symmetric + 0.01 * generator.random((10, 10)), epoch)
        for seed in range(5)
        for epoch in (1, 2, 4)
    ]
    found = tables(states, 0.91)
    outcomes = {
        v.id.removeprefix("mlp/"): v.outcome for v in assess_forces(found, 0.1, digits=True)
    }
    measured = {name for name, outcome in outcomes.items() if outcome == "holds"}
    assert measured == {
        "own_class",
        "confusions",
        "mutual",
        "four_nine",
        "ranks",
        "size",
        "step",
        "four_nine_strongest",
    }
    assert outcomes["accumulated"] == outcomes["step_size"] == "not measured"
    assert "mlp/four_nine" not in {v.id for v in assess_forces(found, 0.1, digits=False)}
    broken = tables(states, 0.3)
    assert {v.id: v.outcome for v in assess_forces(broken, 0.1, digits=True)}[
        "mlp/ranks"
    ] == "fails"


def test_a_rank_counts_the_stronger_pulls() -> None:
    generator, rows = np.random.default_rng(0), []
    for seed, epoch in product(range(5), (1, 2)):
        pull = generator.random((10, 10))
        pull[4, 9] = pull[9, 4] = -1.0
        rows.append(state(seed, pull, epoch))
    found = tables(rows, 0.3)
    verdicts = {v.id: v for v in assess_forces(found, 0.1, digits=True)}
    assert verdicts["mlp/four_nine_strongest"].measured[0].mean == 89


def test_the_window_leaves_the_start_out() -> None:
    assert window([0, 1, 5]) == (1, 5)
    assert window([0, 5]) == (0, 5)
    assert off_diagonal(np.arange(4.0).reshape(2, 2)).tolist() == [1, 2]
