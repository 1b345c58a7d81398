"""The study of forces: its numbers are those of a step taken by hand; claims read them right."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest
import torch

from dynolab.chapters.classification.force_claims import assess_forces, off_diagonal, window
from dynolab.chapters.classification.force_study import (
    ForceFindings,
    ForceStudyConfig,
    Watched,
    pulls,
    study_forces,
)
from dynolab.chapters.classification.rows import ClassifierState, KernelRanks
from dynolab.chapters.classifiers.many import SGDConfig, batch_order
from dynolab.chapters.images.images import ImageConfig, ImageSplits, load_images
from dynolab.errors import ConfigError
from dynolab.statistics import rank_correlation
from models.vision import build_classifier
from tests.chapters.plain import train

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
def found(data: ImageSplits) -> ForceFindings:
    return study_forces(partial(build_classifier, "mlp"), "mlp", data, CONFIG, (0, 1))


def trained(data: ImageSplits, rate: float, seed: int, steps: int) -> torch.nn.Module:
    model = build_classifier("mlp", data.train.shape, 10, seed)
    order = batch_order(len(data.train), CONFIG.training, seed)[:steps]
    own = CONFIG.training.model_copy(update={"learning_rate": rate})
    train(model, data.train.pixels, data.train.labels, order, own)
    return model


def test_a_state_is_that_of_the_network_trained_alone(
    data: ImageSplits, found: ForceFindings
) -> None:
    (state,) = [
        row for row in found.states if (row.learning_rate, row.seed, row.epoch) == (0.1, 1, 1)
    ]
    model, after = (trained(data, 0.1, 1, steps) for steps in (3, 4))
    watched = Watched.of(data, 2)
    with torch.no_grad():
        logits = model(data.test.pixels)
        before, moved = (m(watched.observed.pixels).log_softmax(-1) for m in (model, after))
    right = (logits.argmax(-1) == data.test.labels).float().mean()
    assert state.accuracy == pytest.approx(float(right))
    assert np.allclose(state.pulls, pulls(model, watched, 0.1 / 32), rtol=1e-3, atol=1e-7)
    of_three = logits.softmax(-1)[data.test.labels == 3].mean(0)
    assert np.allclose(state.predictions[3], of_three, atol=1e-5)
    size = float((moved - before).square().mean().sqrt())
    assert state.change == pytest.approx(size, rel=1e-3)


def test_first_order_tells_what_small_steps_did(found: ForceFindings) -> None:
    small = [row for row in found.states if row.learning_rate == 0.01 and row.epoch < 2]
    assert all(row.unexplained < 1e-2 for row in (*small, *found.influences))
    assert all(np.isnan(row.unexplained) for row in found.states if row.epoch == 2)
    for row in found.influences:
        total = np.array(row.from_class).sum(0)
        assert np.allclose(total, row.measured, rtol=0.1, atol=0.02)


def test_ranks_are_those_of_pairs_of_classes(found: ForceFindings) -> None:
    own = {
        row.epoch: np.array(row.kernel)
        for row in found.states
        if (row.learning_rate, row.seed) == (0.1, 0)
    }
    (row,) = [
        row
        for row in found.ranks
        if (row.learning_rate, row.seed, row.first, row.second) == (0.1, 0, 0, 2)
    ]
    assert np.allclose(own[0], own[0].T, rtol=1e-3)
    pairs = np.triu_indices(10)
    assert row.correlation == rank_correlation(own[0][pairs], own[2][pairs])
    assert row.growth == pytest.approx(float(np.median(own[2][pairs] / own[0][pairs])) - 1)


def test_a_learning_rate_that_diverges_is_told_and_leaves_the_others_as_they_are(
    data: ImageSplits, found: ForceFindings
) -> None:
    wild = CONFIG.model_copy(update={"learning_rates": (0.01, 0.1, 1e20)})
    again = study_forces(partial(build_classifier, "mlp"), "mlp", data, wild, (0, 1))
    assert {(row.learning_rate, row.seed) for row in again.diverged} == {(1e20, 0), (1e20, 1)}
    for rows in (again.states, again.ranks):
        assert {row.learning_rate for row in rows} == {0.01, 0.1}
    assert [row.accuracy for row in again.states] == [row.accuracy for row in found.states]


def test_a_main_learning_rate_that_diverges_is_refused(data: ImageSplits) -> None:
    training = CONFIG.training.model_copy(update={"learning_rate": 1e20})
    blown = CONFIG.model_copy(update={"training": training, "learning_rates": (1e20,)})
    with pytest.raises(ConfigError, match=r"training\.learning_rate = 1e\+20: mlp diverges at st"):
        study_forces(partial(build_classifier, "mlp"), "mlp", data, blown, (0,))


def test_a_class_with_too_few_images_to_watch_is_refused() -> None:
    few = load_images(ImageConfig(train=96, validation=10, test=15))
    with pytest.raises(ConfigError, match=r"forces\.watched = 2: a class has 1 images in test"):
        Watched.of(few, 2)


def state(seed: int, pull: np.ndarray, epoch: int = 1) -> ClassifierState:
    rows = tuple(map(tuple, pull.tolist()))
    return ClassifierState(
        network="mlp",
        learning_rate=0.1,
        seed=seed,
        epoch=epoch,
        accuracy=1,
        loss=0,
        unexplained=0.01,
        change=1,
        predictions=tuple(zip(*rows, strict=True)),
        pulls=rows,
        kernel=rows,
    )


def rank_rows(correlation: float) -> list[KernelRanks]:
    """Five seeds, from this rank correlation up."""
    return [
        KernelRanks(
            network="mlp",
            learning_rate=0.1,
            seed=seed,
            first=1,
            second=2,
            correlation=correlation + seed / 100,
            growth=1.0 + seed / 10,
        )
        for seed in range(5)
    ]


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
    found = ForceFindings(states, rank_rows(0.91))
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
    broken = ForceFindings(states, rank_rows(0.3))
    assert {v.id: v.outcome for v in assess_forces(broken, 0.1, digits=True)}[
        "mlp/ranks"
    ] == "fails"


def test_a_rank_counts_the_stronger_pulls() -> None:
    generator, rows = np.random.default_rng(0), []
    for seed, epoch in product(range(5), (1, 2)):
        pull = generator.random((10, 10))
        pull[4, 9] = pull[9, 4] = -1.0
        rows.append(state(seed, pull, epoch))
    found = ForceFindings(rows, rank_rows(0.3))
    verdicts = {v.id: v for v in assess_forces(found, 0.1, digits=True)}
    assert verdicts["mlp/four_nine_strongest"].measured[0].mean == 89


def test_the_window_leaves_the_start_out() -> None:
    assert window([0, 1, 5]) == (1, 5)
    assert window([0, 5]) == (0, 5)
    assert off_diagonal(np.arange(4.0).reshape(2, 2)).tolist() == [1, 2]
