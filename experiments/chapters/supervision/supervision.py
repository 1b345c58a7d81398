"""Trains one network on several supervisory signals under label noise, all seeds at once.

The arms of a seed share initial weights, wrong labels and the order of batches; only their targets
differ. Teachers see noisy labels only. Validation labels are as noisy as training labels, because
in practice clean ones would not be available. Arms:

- `one_hot`: the given labels, to the end, and `early_stopping` the same up to the best validation
  accuracy; `one_hot_twice`: at twice the learning rate, the control for distillation, whose force
  at τ = 1 is twice cross-entropy's;
- `label_smoothing`;
- `kd` and `eskd`: predictions of the converged and the early-stopped teacher; `filter_kd`: the
  teacher's predictions, averaged over its training.

Tables, at a share of wrong labels `noise`:

- `supervision`: one row for each arm and seed. `accuracy` and `nll` (nats) are on clean test
  labels; `target_error`: E‖q − e_true‖₂ of the targets q of the training examples;
  `believed_wrong`: share of the wrongly labelled training examples for which the network predicts
  the wrong label, None where no label is wrong.
- `detections`: `auc`, the share of (wrong, right) couples in which the wrong label has the higher
  `score`: `filter`, 1 − q_y of Filter-KD's table; `path`, 1 − p_y, mean over the epochs; `last`, 1
  − p_y after training; `zigzag`, the zig-zag score of the learning path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from dynolab.statistics import auc
from experiments.chapters.classification.paths import zigzag
from experiments.chapters.classifiers.labels import (
    FILTER_DECAY,
    FilterTable,
    NoisyLabels,
    disagreement,
    distillation,
    one_hot,
    seeded_flip,
    smoothed,
)
from experiments.chapters.classifiers.many import (
    ManyModels,
    SGDConfig,
    batch_orders,
    cross_entropy,
    train_many,
)
from experiments.chapters.images import ImageSplits

Build = Callable[[int], nn.Module]
"""Builds a network from the seed of its initial weights."""


class SupervisionConfig(BaseModel):
    """How teachers and students are trained."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    training: SGDConfig = Field(
        SGDConfig(learning_rate=0.05, momentum=0.9, epochs=40),
        description="Training of teachers and students alike.",
    )
    smoothing: float = Field(0.1, ge=0, lt=1, description="ε of label smoothing.")
    temperature: float = Field(
        1.0, gt=0, description="τ of distillation, for the teacher's and the student's predictions."
    )
    filter_decay: float = Field(
        FILTER_DECAY, ge=0, lt=1, description="Decay of Filter-KD's moving average of predictions."
    )


@dataclass(frozen=True)
class Teacher:
    """Results of training on the given labels; the first axis is over seeds.

    - `early`, `last`: logits on the training inputs at the weights with the best validation
      accuracy (`early_weights`) and at the last ones (`last_weights`).
    - `table`: filtered predictions at temperature τ.
    - `path`: probabilities (τ = 1) when visited in each epoch; NaN if an epoch left the example
      out.
    """

    early: Float[Tensor, "seeds examples classes"]
    last: Float[Tensor, "seeds examples classes"]
    early_weights: Mapping[str, Tensor]
    last_weights: Mapping[str, Tensor]
    table: FilterTable
    path: Float[Tensor, "epochs seeds examples classes"]


def compare_supervision(
    build: Build, data: ImageSplits, config: SupervisionConfig, noise: float, seeds: Sequence[int]
) -> dict[str, list[dict[str, Any]]]:
    """Trains every arm with every seed on the training images, a share of them mislabelled.

    **Arguments:** `noise`: in [0, 1).

    **Returns:** the tables of this module.

    **Raises:** `ConfigError` for labels out of range, a class without examples.
    """
    labels, checks = (
        [seeded_flip(images.labels, data.classes, noise, seed) for seed in seeds]
        for images in (data.train, data.validation)
    )
    given, true = torch.stack([noisy.given for noisy in labels]), data.train.labels
    orders = batch_orders(len(true), config.training, seeds)
    hard = one_hot(given, data.classes)
    teacher = train_teacher(
        ManyModels([build(seed) for seed in seeds]),
        data.train.pixels,
        hard,
        orders,
        config,
        data.validation.pixels,
        torch.stack([noisy.given for noisy in checks]),
    )
    temperature = config.temperature
    targets: dict[str, Float[Tensor, "seeds examples classes"]] = {
        "one_hot": hard,
        "early_stopping": hard,
        "one_hot_twice": hard,
        "label_smoothing": smoothed(given, data.classes, config.smoothing),
        "kd": (teacher.last / temperature).softmax(-1),
        "eskd": (teacher.early / temperature).softmax(-1),
        "filter_kd": teacher.table.targets(hard),
    }
    weights: dict[str, Mapping[str, Tensor]] = {
        "one_hot": teacher.last_weights,
        "early_stopping": teacher.early_weights,
    }
    for arms in (("one_hot_twice", "label_smoothing"), ("kd", "eskd", "filter_kd")):
        weights |= _train_students(
            build, data, config, seeds, orders, {arm: targets[arm] for arm in arms}
        )
    many = ManyModels([build(seed) for seed in seeds])
    rows = [
        {"arm": arm, "noise": noise, **row}
        for arm, target in targets.items()
        for row in _measure(many, weights[arm], data, target, labels, seeds)
    ]
    detections = [{"noise": noise, **row} for row in _detections(teacher, labels, seeds)]
    return {"supervision": rows, "detections": detections}


def train_teacher(
    many: ManyModels,
    inputs: Tensor,
    hard: Float[Tensor, "seeds examples classes"],
    orders: Int[Tensor, "seeds steps batch"],
    config: SupervisionConfig,
    check_inputs: Tensor,
    check_labels: Int[Tensor, "seeds checks"],
) -> Teacher:
    """Trains on one-hot labels, and keeps the predictions that become the students' targets."""
    table = FilterTable(*hard.shape, decay=config.filter_decay)
    path = torch.full((config.training.epochs, *hard.shape), torch.nan)
    best = torch.full((len(many),), -1.0)
    early = dict(many.weights)
    per_epoch = orders.shape[1] // config.training.epochs
    for step in train_many(many, inputs, hard, orders, config.training):
        table.visit(step.rows, (step.logits / config.temperature).softmax(-1))
        at = step.rows.unsqueeze(-1).expand_as(step.logits)
        path[(step.number - 1) // per_epoch].scatter_(1, at, step.logits.softmax(-1))
        if step.number % per_epoch == 0:
            accuracy = (many.logits(check_inputs).argmax(-1) == check_labels).float().mean(-1)
            better, best = accuracy > best, accuracy.maximum(best)
            early = {
                name: torch.where(better.view(-1, *[1] * (new.dim() - 1)), new, early[name])
                for name, new in step.after.items()
            }
    last = dict(many.weights)
    return Teacher(many.logits(inputs, early), many.logits(inputs, last), early, last, table, path)


def _train_students(
    build: Build,
    data: ImageSplits,
    config: SupervisionConfig,
    seeds: Sequence[int],
    orders: Int[Tensor, "seeds steps batch"],
    targets: Mapping[str, Float[Tensor, "seeds examples classes"]],
) -> dict[str, Mapping[str, Tensor]]:
    """Trains all seeds of these arms at once."""
    many = ManyModels([build(seed) for _ in targets for seed in seeds])
    distilled = "kd" in targets
    rates = torch.full((len(many),), config.training.learning_rate)
    for place, arm in enumerate(targets):
        if arm == "one_hot_twice":
            rates[place * len(seeds) : (place + 1) * len(seeds)] *= 2
    loss = partial(distillation, temperature=config.temperature) if distilled else cross_entropy
    for _ in train_many(
        many,
        data.train.pixels,
        torch.cat(list(targets.values())),
        orders.repeat(len(targets), 1, 1),
        config.training,
        loss=loss,
        learning_rates=rates,
    ):
        pass
    return {
        arm: {
            name: w[place * len(seeds) : (place + 1) * len(seeds)]
            for name, w in many.weights.items()
        }
        for place, arm in enumerate(targets)
    }


def _measure(
    many: ManyModels,
    weights: Mapping[str, Tensor],
    data: ImageSplits,
    target: Float[Tensor, "seeds examples classes"],
    labels: Sequence[NoisyLabels],
    seeds: Sequence[int],
) -> Iterator[dict[str, Any]]:
    test = many.logits(data.test.pixels, weights)
    accuracy = (test.argmax(-1) == data.test.labels).float().mean(-1)
    picked = data.test.labels[None, :, None].expand(len(seeds), -1, 1)
    nll = -test.log_softmax(-1).gather(-1, picked).mean((1, 2))
    predicted = many.logits(data.train.pixels, weights).argmax(-1)
    error = (target - one_hot(data.train.labels, data.classes)).norm(dim=-1).mean(-1)
    for place, (seed, noisy) in enumerate(zip(seeds, labels, strict=True)):
        fitted_wrong = (predicted[place] == noisy.given)[noisy.wrong].float()
        yield {
            "seed": seed,
            "accuracy": float(accuracy[place]),
            "nll": float(nll[place]),
            "target_error": float(error[place]),
            "believed_wrong": float(fitted_wrong.mean()) if len(fitted_wrong) else None,
        }


def _detections(
    teacher: Teacher, labels: Sequence[NoisyLabels], seeds: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """AUC of each score at finding wrong labels; no rows for seeds without any."""
    given = torch.stack([noisy.given for noisy in labels])
    along = teacher.path.gather(-1, given[None, :, :, None].expand(len(teacher.path), -1, -1, 1))
    # An example that was in no batch has no path: score it as chance, with no zig-zag.
    classes = teacher.last.shape[-1]
    scores: dict[str, Tensor] = {
        "filter": disagreement(teacher.table.targets(one_hot(given, classes)), given),
        "path": 1 - along.squeeze(-1).nanmean(0).nan_to_num(1 / classes),
        "last": disagreement(teacher.last.softmax(-1), given),
        "zigzag": zigzag(teacher.path, given).nan_to_num(0.0),
    }
    for name, score in scores.items():
        for place, seed in enumerate(seeds):
            wrong = labels[place].wrong
            if wrong.any():
                area = float(auc(score[place].numpy(), wrong.numpy()))
                yield {"score": name, "seed": seed, "auc": area}
