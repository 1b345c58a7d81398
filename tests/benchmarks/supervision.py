"""What Filter-KD gains over one-hot labels under label noise, and training seeds together in time.

Part of `python -m tests.benchmarks.classification`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import nn

from dynolab.chapters.classifiers.labels import one_hot
from dynolab.chapters.classifiers.many import (
    ManyModels,
    SGDConfig,
    batch_orders,
    train_many,
)
from dynolab.chapters.images.images import ImageSplits, load_images
from dynolab.chapters.supervision.claims import supervision_table
from dynolab.chapters.supervision.supervision import compare_supervision
from flows.parameters import load_parameters
from flows.supervision import SupervisionParameters
from models.vision import build_classifier
from tests.benchmarks.figures import interleaved, ratio
from tests.chapters.plain import train

NOISE = 0.4
STUDY = Path(__file__).resolve().parents[2] / "deploy" / "studies" / "supervision_builtin.yaml"

Figures = dict[str, float]
Build = Callable[[int], nn.Module]


def filter_kd(repeats: int) -> Figures:
    """Accuracy at 40% noise on digits, five seeds, by the built-in study's settings; reported.

    `seeds_speedup`: the same networks trained by a plain loop of torch's SGD one after another,
    against all five together, one epoch each.
    """
    known = load_parameters(SupervisionParameters, STUDY)
    data = load_images(known.data)
    build: Build = partial(build_classifier, known.model, data.train.shape, data.classes)
    comparison = compare_supervision(build, data, known.supervision, NOISE, known.seeds)
    table = supervision_table(comparison.rows, NOISE)
    gain = table.difference("filter_kd", "one_hot", "accuracy")
    return {
        "filter_kd_gain": gain.mean,
        "filter_kd_gain_low": gain.low,
        "filter_kd_gain_high": gain.high,
        "filter_kd_accuracy": table.mean("filter_kd", "accuracy").mean,
        "one_hot_accuracy": table.mean("one_hot", "accuracy").mean,
        **_speedup(data, build, known.supervision.training, known.seeds, repeats),
    }


def _speedup(
    data: ImageSplits, build: Build, config: SGDConfig, seeds: tuple[int, ...], repeats: int
) -> Figures:
    """An epoch of all seeds one after another, over one of all together."""
    once = config.model_copy(update={"epochs": 1})
    targets = one_hot(data.train.labels, data.classes)
    orders = batch_orders(len(targets), once, seeds)

    def together() -> None:
        many = ManyModels([build(seed) for seed in seeds])
        for _ in train_many(many, data.train.pixels, targets, orders, once):
            pass

    def apart() -> None:
        for seed, order in zip(seeds, orders, strict=True):
            train(build(seed), data.train.pixels, targets, order, once)

    fast, slow = interleaved(together, apart, repeats=repeats)
    return ratio("seeds_speedup", slow, fast)
