"""Classifiers on the GPU: their kernel and forces, and the two chapters that train there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from dynolab.chapters.classification.force_study import study_forces
from dynolab.chapters.classification.path_study import PathStudyConfig, study_paths
from dynolab.chapters.classifiers.forces import classifier_kernel, label_forces, pair_forces
from dynolab.chapters.classifiers.many import SGDConfig
from dynolab.chapters.classifiers.toys import GaussianConfig
from dynolab.chapters.images.images import ImageConfig, load_images
from models.vision import build_classifier
from tests.chapters.test_classifier_forces import CLASSES, images
from tests.chapters.test_force_study import CONFIG

NETWORKS = ("lenet", "mlp", "transformer")


def force(network: str, _: Path) -> None:
    model = build_classifier(network, (1, 8, 8), CLASSES, seed=1, device="cuda").double()
    seen, taught = images(5, 0).to("cuda"), images(3, 1).to("cuda")
    targets = torch.eye(CLASSES, device="cuda", dtype=torch.float64)[:3]
    classifier_kernel(model, seen, taught, CLASSES)
    pair_forces(model, seen, taught, targets, 0.1)
    labels = torch.tensor([0, 1, 2, 3, 0], device="cuda")
    label_forces(model, seen, labels, taught, targets, 0.1)


def force_chapter(_: Path) -> None:
    data = load_images(ImageConfig(train=96, validation=10, test=60)).to("cuda")
    study_forces(partial(build_classifier, "mlp", device="cuda"), "mlp", data, CONFIG, (0, 1))


def path_chapter(_: Path) -> None:
    data = load_images(ImageConfig(train=96, validation=10, test=60))
    build = partial(build_classifier, "mlp", device="cuda")
    short = SGDConfig(learning_rate=0.05, epochs=2)
    config = PathStudyConfig(toy=GaussianConfig(), toy_training=short, training=short)
    study_paths(build, data, config, (0, 1), build)


def paths() -> Iterator[tuple[str, Callable[[Path], None]]]:
    for network in NETWORKS:
        yield f"forces on {network}", partial(force, network)
    yield "chapter of class forces", force_chapter
    yield "chapter of learning paths", path_chapter
