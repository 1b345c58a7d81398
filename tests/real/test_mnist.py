"""Forces and learning paths on real MNIST digits."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dynolab.chapters.classification.claims import assess_forces, by_seed
from dynolab.chapters.classification.forces import ForceStudyConfig, study_forces
from dynolab.chapters.classification.paths import PathStudyConfig, study_paths
from dynolab.chapters.classifiers.many import SGDConfig
from dynolab.chapters.images import ImageConfig, ImageSplits, load_images
from flows.chapter.digits import ClassificationParameters
from flows.parameters import load_parameters
from models.vision import build_classifier
from tests.flows.lab import ROOT

pytestmark = [
    pytest.mark.study,
    pytest.mark.skipif("DYNOLAB_TEST_DATA" not in os.environ, reason="needs DYNOLAB_TEST_DATA"),
]
SEEDS = (100, 101)
FILE = ROOT / "deploy/studies/classification_mnist.yaml"


@pytest.fixture(scope="module")
def mnist() -> ImageSplits:
    folder = Path(os.environ["DYNOLAB_TEST_DATA"]) / "data" / "mnist"
    return load_images(ImageConfig(source="idx", path=str(folder), seed=SEEDS[0]))


def test_lenet_learns_real_digits_and_its_forces_tell_its_steps(mnist: ImageSplits) -> None:
    config = ForceStudyConfig(
        training=SGDConfig(learning_rate=0.02, epochs=3),
        learning_rates=(0.02,),
        epochs=(0, 1, 3),
        influence_epochs=0,
    )
    build = partial(build_classifier, "lenet")
    study = study_forces(build, "lenet", mnist, config, SEEDS)
    states = pd.DataFrame(study["states"])
    last = states[states.epoch == 3]
    assert last.accuracy.min() > 0.6
    own = by_seed(last, lambda state: float(np.diag(np.array(state.pulls)).mean()))
    assert (own > 0).all()
    assert states.unexplained.median() < 0.3


def test_the_study_of_mnist_shows_what_the_small_digits_do_not() -> None:
    known = load_parameters(ClassificationParameters, FILE)
    seeds = tuple(range(100, 110))  # of five, one alone widens the interval past the threshold
    images = load_images(known.data)
    study = study_forces(partial(build_classifier, "lenet"), "lenet", images, known.forces, seeds)
    tables = {name: pd.DataFrame(rows) for name, rows in study.items()}
    rate = known.forces.training.learning_rate
    outcomes = {verdict.id: verdict.outcome for verdict in assess_forces(tables, rate, digits=True)}
    assert outcomes["lenet/ranks"] == outcomes["lenet/four_nine"] == "holds"


def test_zigzag_finds_wrong_labels_among_real_digits(mnist: ImageSplits) -> None:
    config = PathStudyConfig(
        training=SGDConfig(learning_rate=0.05, epochs=15), toy_training=SGDConfig(epochs=1)
    )
    build = partial(build_classifier, "mlp")
    study = study_paths(build, mnist, config, SEEDS, build)
    assert min(score["auc"] for score in study["scores"] if score["data"] == "images") > 0.8
