"""Stages on supervision: training under label noise, and which examples are learned faster."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
from pydantic import Field

from dynolab.chapters.classifiers.seeds import Seeds
from dynolab.chapters.supervision.speed_comparisons import SpeedConfig
from dynolab.chapters.supervision.supervision import SupervisionConfig
from models.vision import ClassifierName
from tasks.images import IMAGES_FILE
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work

IMAGE_AXES = 3  # channels, height, width


class SupervisionJob(SupervisionConfig):
    """All arms and seeds at one noise level."""

    model: ClassifierName = "mlp"
    seeds: Seeds = (0,)
    noise: float = Field(0.4, ge=0, lt=1, description="Share of wrong labels.")


class SpeedJob(SpeedConfig):
    """The trainings, one per seed, whose every step is analysed; those on vectors take an mlp."""

    model: ClassifierName = "mlp"
    seeds: Seeds = (0,)


def supervision(work: Work[SupervisionJob]) -> dict[str, float]:
    """Reads input `images`. Results: `supervision.jsonl` and `detections.jsonl`.

    Returns mean accuracies as `noise_<percent>/accuracy/<arm>`, mean AUCs as `…/auc/<score>`.
    """
    from dynolab.chapters.images.images import read_images
    from dynolab.chapters.supervision.supervision import compare_supervision
    from models.vision import build_classifier

    config = work.config
    data = read_images(work.input_folder("images") / IMAGES_FILE)
    build = partial(build_classifier, config.model, data.train.shape, data.classes)
    with work.shown():
        compared = compare_supervision(build, data, config, config.noise, config.seeds)
        work.write_tables(supervision=compared.rows, detections=compared.detections)
    work.log_tables(supervision=compared.rows, detections=compared.detections)
    level = f"noise_{100 * config.noise:g}"
    metrics = {
        f"{level}/accuracy/{arm}": _mean(row.accuracy for row in compared.rows if row.arm == arm)
        for arm in dict.fromkeys(row.arm for row in compared.rows)
    } | {
        f"{level}/auc/{score}": _mean(row.auc for row in compared.detections if row.score == score)
        for score in dict.fromkeys(row.score for row in compared.detections)
    }
    return work.log_metrics(metrics)


def learning_speed(work: Work[SpeedJob]) -> dict[str, float]:
    """Reads input `images`. Results: `speeds.jsonl` and `adaptations.jsonl`.

    Returns the mean accumulated influence of every kind of example as `speed/<kind>`, in nats.
    """
    from dynolab.chapters.images.images import read_images
    from dynolab.chapters.supervision.speed_comparisons import compare_speeds
    from dynolab.chapters.transfer.adaptation import compare_adaptation
    from models.vision import build_classifier

    config = work.config
    data = read_images(work.input_folder("images") / IMAGES_FILE)
    with work.shown():
        rows = compare_speeds(
            lambda shape, classes, seed: build_classifier(
                config.model if len(shape) == IMAGE_AXES else "mlp", shape, classes, seed
            ),
            data.train,
            data.classes,
            config,
            config.seeds,
        )
        adaptations = compare_adaptation(config.adaptation, config.seeds)
        work.write_tables(speeds=rows, adaptations=adaptations)
    metrics = {
        f"speed/{kind}": _mean(row.speed for row in rows if row.kind == kind)
        for kind in dict.fromkeys(row.kind for row in rows)
    }
    return work.log_metrics(metrics)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


SUPERVISION = Stage("supervision", 2, supervision)
LEARNING_SPEED = Stage("learning-speed", 2, learning_speed)
