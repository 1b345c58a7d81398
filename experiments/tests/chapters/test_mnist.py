"""Forces, learning paths, supervision under label noise and task heads on real MNIST digits."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.chapters.classification.claims import assess_forces, by_seed
from experiments.chapters.classification.forces import ForceStudyConfig, study_forces
from experiments.chapters.classification.paths import PathStudyConfig, study_paths
from experiments.chapters.classifiers.many import SGDConfig
from experiments.chapters.flows.digits import (
    ClassificationParameters,
    SupervisionParameters,
    TransferParameters,
    plan_supervision,
    plan_transfer,
)
from experiments.chapters.images import ImageConfig, ImageSplits, load_images
from experiments.chapters.page import read_frame
from experiments.chapters.supervision.claims import supervision_table
from experiments.chapters.transfer.page import by_tau
from experiments.chapters.vision import build_classifier
from flows.parameters.parse import load_parameters
from flows.parameters.validation import validated
from tests.benchmarks.figures import STUDIES
from tests.flows.in_process import InProcess

pytestmark = [
    pytest.mark.study,
    pytest.mark.skipif("DYNOLAB_TEST_DATA" not in os.environ, reason="needs DYNOLAB_TEST_DATA"),
]
SEEDS = [100, 101, 102, 103, 104]


def source() -> dict[str, str]:
    """Of the data, in settings."""
    return {"source": "idx", "path": str(Path(os.environ["DYNOLAB_TEST_DATA"]) / "data" / "mnist")}


@pytest.fixture(scope="module")
def mnist() -> ImageSplits:
    return load_images(ImageConfig.model_validate(source() | {"seed": SEEDS[0]}))


def test_lenet_learns_real_digits_and_its_forces_tell_its_steps(mnist: ImageSplits) -> None:
    config = ForceStudyConfig(
        training=SGDConfig(learning_rate=0.02, epochs=3),
        learning_rates=(0.02,),
        epochs=(0, 1, 3),
        influence_epochs=0,
    )
    build = partial(build_classifier, "lenet")
    study = study_forces(build, "lenet", mnist, config, (100, 101))
    states = pd.DataFrame(study["states"])
    last = states[states.epoch == 3]
    assert last.accuracy.min() > 0.6
    own = by_seed(last, lambda state: float(np.diag(np.array(state.pulls)).mean()))
    assert (own > 0).all()
    assert states.unexplained.median() < 0.3


def test_the_study_of_mnist_shows_what_the_small_digits_do_not() -> None:
    known = load_parameters(ClassificationParameters, STUDIES / "classification_mnist.yaml")
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
    study = study_paths(build, mnist, config, (100, 101), build)
    assert min(score["auc"] for score in study["scores"] if score["data"] == "images") > 0.8


def test_filter_kd_beats_one_hot_labels_on_real_digits(tmp_path: Path) -> None:
    parameters = validated(
        SupervisionParameters,
        {
            "seeds": SEEDS,
            "noise": [0.4],
            "data": source() | {"train": 1000},
            "speed": {"examples": 60, "steps": 20},
        },
    )
    lab = InProcess(tmp_path)
    results = lab.run_steps(plan_supervision(parameters, lab.platform).steps)
    folder = lab.folder(results["noise-40"])
    rows = read_frame([folder], "supervision.jsonl")
    gain = supervision_table(rows, 0.4).difference("filter_kd", "one_hot", "accuracy")
    assert gain.low > 0
    detections = read_frame([folder], "detections.jsonl").set_index("score")
    assert detections.auc[["filter", "path"]].min() > 0.8


def test_probing_trades_energy_for_features_that_stay_on_real_digits(tmp_path: Path) -> None:
    settings = {
        "examples": 100,
        "taus": [0, 4, 64],
        "strategies": ["linear"],
        "finetuning": {"learning_rate": 0.03, "batch_size": 20, "epochs": 40},
    }
    parameters = validated(
        TransferParameters,
        {"seeds": SEEDS, "data": source() | {"train": 1000}, "digits": settings, "texts": None},
    )
    lab = InProcess(tmp_path)
    results = lab.run_steps(plan_transfer(parameters, lab.platform).steps)
    linear = read_frame([lab.folder(results["transfer-digits"])], "transfer.jsonl")
    for name in ("energy", "distance"):
        values = by_tau(linear, name)
        assert (values[-1] < values[0]).all()
