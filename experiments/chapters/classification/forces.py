"""Trains networks over learning rates and seeds, and measures forces during training.

Tables, one row for each network, learning rate and seed; `o` and `u` are classes of images:

- `states`: before epoch `epoch` + 1. `accuracy` and `loss` (nats) on the test images;
  `predictions[o][k]`, mean probability of class k on the images of class o. Of the step that
  follows, on the observed images: `change`, the root mean square of all Δ log p in nats, and
  `unexplained`, `1 − R² = Σ(measured − predicted)²/Σ measured²` with first order from the step's
  batch. `pulls[u][o]`: first-order effect of one training image of class u, by its share of a
  step, on p_u of the images of class o. `kernel[o][u]`: ‖C K C‖_F of the images of class o with
  those of class u, mean over pairs of different images, in squared logits.
- `ranks`: the kernel at epochs `first` and `second`. `correlation`: Spearman's, over the pairs of
  classes, including each class with itself; `growth`: the median factor of growth, less one.
- `influence`: `from_class[u][o]` = `Σ_t −η/B Σ_{i of class u} A K G` over the steps up to `epoch`,
  on the given label's log p, first order, nats, mean over the observed images of class o;
  `measured[o]`, the change itself; `unexplained`, 1 − R² of the sum over u, over the images.
- `diverged`: the `step` at which a network's weights became NaN or infinite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from dynolab.errors import ConfigError
from dynolab.statistics import rank_correlation
from experiments.chapters.classifiers.forces import (
    centred_norms,
    classifier_kernel,
    label_forces,
    pair_forces,
)
from experiments.chapters.classifiers.labels import one_hot
from experiments.chapters.classifiers.many import (
    Build,
    ManyModels,
    ManyStep,
    SGDConfig,
    Stacked,
    batch_orders,
    train_many,
)
from experiments.chapters.images import Images, ImageSplits

Records = list[dict[str, Any]]
"""Rows of a table."""


class ForceStudyConfig(BaseModel):
    """How networks are trained, and what is measured during training."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    training: SGDConfig = Field(
        SGDConfig(learning_rate=0.02, epochs=12),
        description="Plain SGD, so that forces explain the whole step; figures show the run with "
        "its learning rate.",
    )
    learning_rates: tuple[float, ...] = Field(
        (0.005, 0.02, 0.1), min_length=1, description="Learning rates to train with."
    )
    epochs: tuple[int, ...] = Field(
        (0, 1, 2, 4, 8, 12), min_length=2, description="Epochs after which forces are measured."
    )
    watched: int = Field(3, ge=2, description="Watched test images per class.")
    influence_epochs: int = Field(
        3, ge=0, description="First epochs, over which the forces of every step are summed."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> ForceStudyConfig:
        training = self.training
        training.check_plain("forces.training")
        if training.learning_rate not in self.learning_rates:
            raise ConfigError(
                "forces.learning_rates",
                list(self.learning_rates),
                f"forces.training.learning_rate, {training.learning_rate:g}, must be one of them",
            )
        for name, values in (("learning_rates", self.learning_rates), ("epochs", self.epochs)):
            if list(values) != sorted(set(values)) or min(values) < 0:
                raise ConfigError(
                    f"forces.{name}", list(values), "list rising values from 0, each once"
                )
        most = max(self.epochs[-1], self.influence_epochs)
        if most > training.epochs:
            raise ConfigError(
                "forces.epochs", most, f"training has {training.epochs} epochs; list none beyond"
            )
        return self


def study_forces(
    build: Build, network: str, data: ImageSplits, config: ForceStudyConfig, seeds: Sequence[int]
) -> dict[str, Records]:
    """Trains a network with all learning rates and seeds at once, and measures forces meanwhile.

    Runs with the same seed share initial weights and the order of batches.

    **Returns:** the tables of this module. A learning rate at which the network diverged with any
    seed has rows in `diverged` only.

    **Raises:** `ConfigError` if the learning rate that figures show diverges.
    """
    runs = [(rate, seed) for rate in config.learning_rates for seed in seeds]
    many = ManyModels([build(data.train.shape, data.classes, seed) for _, seed in runs])
    training = config.training
    steps = train_many(
        many,
        data.train.pixels,
        one_hot(data.train.labels, data.classes),
        batch_orders(len(data.train), training, [seed for _, seed in runs]),
        training,
        learning_rates=torch.tensor([rate for rate, _ in runs]),
        raise_on_divergence=False,
    )
    study = _Study(
        many,
        network,
        runs,
        data,
        observed=first_of_each_class(data, "test", config.watched),
        updating=first_of_each_class(data, "train", config.watched),
        training=training,
    )
    states: Records = []
    influence: Records = []
    diverged: Records = []
    per_epoch = len(data.train) // training.batch_size
    start = study.label_logps(many.weights)
    sums = torch.zeros(*start.shape, data.classes).to(start)
    stable = torch.ones(len(runs), dtype=torch.bool)
    for step in steps:
        epoch, within = divmod(step.number - 1, per_epoch)
        finite = [w.flatten(1).isfinite().all(1) for w in step.after.values()]
        failed = stable & ~torch.stack(finite).all(0).cpu()
        stable &= ~failed
        diverged += [study.run(n) | {"step": step.number} for n in failed.nonzero()[:, 0].tolist()]
        for row in diverged:
            if row["learning_rate"] == training.learning_rate:
                raise ConfigError(
                    "forces.training.learning_rate",
                    training.learning_rate,
                    f"{network} diverges at step {row['step']}, seed {row['seed']}; lower it",
                )
        if within == 0 and epoch in config.epochs:
            states += study.states(epoch, step, stable)
        if epoch < config.influence_epochs:
            study.add_influence(sums, step)
            if step.number == per_epoch * config.influence_epochs:
                moved = study.label_logps(step.after) - start
                influence += study.influence(config.influence_epochs, sums, moved)
    if training.epochs in config.epochs:
        states += study.states(training.epochs, None, stable)
    failed_rates = {row["learning_rate"] for row in diverged}
    states = [row for row in states if row["learning_rate"] not in failed_rates]
    return {
        "states": states,
        "ranks": list(_ranks(states)),
        "influence": influence,
        "diverged": diverged,
    }


def first_of_each_class(data: ImageSplits, split: str, count: int) -> Images:
    """The first images of every class of a split.

    **Raises:** `ConfigError` if a class has too few.
    """
    images: Images = getattr(data, split)
    fewest = int(torch.bincount(images.labels, minlength=data.classes).min())
    if fewest < count:
        raise ConfigError(
            "forces.watched",
            count,
            f"a class has {fewest} images in {split}; raise data.{split}, or watch fewer",
        )
    places = [(images.labels == label).nonzero()[:count, 0] for label in range(data.classes)]
    return images.take(torch.cat(places))


@dataclass(frozen=True)
class _Study:
    """All runs of a network, with the test images observed and the training images to update on."""

    many: ManyModels
    network: str
    runs: Sequence[tuple[float, int]]
    data: ImageSplits
    observed: Images
    updating: Images
    training: SGDConfig

    def run(self, n: int) -> dict[str, Any]:
        """The columns that name a run."""
        rate, seed = self.runs[n]
        return {"network": self.network, "learning_rate": rate, "seed": seed}

    def logps(self, weights: Stacked) -> Float[Tensor, "runs observed classes"]:
        """Log-probabilities of the observed images."""
        return self.many.logits(self.observed.pixels, weights).log_softmax(-1)

    def label_logps(self, weights: Stacked) -> Float[Tensor, "runs observed"]:
        """Those of their labels."""
        return self.logps(weights)[
            :, torch.arange(len(self.observed)), self.observed.labels
        ].double()

    def states(
        self, epoch: int, step: ManyStep | None, stable: Bool[Tensor, " runs"]
    ) -> Iterator[dict[str, Any]]:
        """Measures the runs at the start of an epoch and over the step that follows.

        **Arguments:** `step`: None after the last epoch; `stable`: runs that have not diverged.
        """
        before = self.many.weights if step is None else step.before
        test = self.many.logits(self.data.test.pixels, before)
        labels, classes = self.data.test.labels, self.data.classes
        moved = None if step is None else self.logps(step.after) - self.logps(before)
        for n in stable.nonzero()[:, 0].tolist():
            rate, _ = self.runs[n]
            model = self.many.model(n, before)
            unexplained = change = float("nan")
            if step is not None and moved is not None:
                batch = self.data.train.take(step.rows[n])
                targets = one_hot(batch.labels, classes)
                forces = pair_forces(model, self.observed.pixels, batch.pixels, targets, rate)
                left = moved[n] - forces.mean(1)
                unexplained = float(left.square().sum() / moved[n].square().sum())
                change = float(moved[n].square().mean().sqrt())
            shares = pulls(
                model, self.observed, self.updating, classes, rate / self.training.batch_size
            )
            yield self.run(n) | {
                "epoch": epoch,
                "accuracy": float((test[n].argmax(-1) == labels).float().mean()),
                "loss": float(nn.functional.cross_entropy(test[n], labels)),
                "unexplained": unexplained,
                "change": change,
                "predictions": class_rows(test[n].softmax(-1), labels, classes).tolist(),
                "pulls": shares.tolist(),
                "kernel": kernel_by_class(model, self.observed, classes).tolist(),
            }

    def add_influence(self, sums: Float[Tensor, "runs observed classes"], step: ManyStep) -> None:
        """Adds a step's forces by the updating image's class, for runs at the main rate."""
        for n, (rate, _) in enumerate(self.runs):
            if rate == self.training.learning_rate:
                batch = self.data.train.take(step.rows[n])
                targets = one_hot(batch.labels, self.data.classes)
                pushes = label_forces(
                    self.many.model(n, step.before),
                    self.observed.pixels,
                    self.observed.labels,
                    batch.pixels,
                    targets,
                    rate,
                )
                sums[n] += (pushes / len(batch)).double() @ targets.double()

    def influence(
        self,
        epoch: int,
        sums: Float[Tensor, "runs observed classes"],
        moved: Float[Tensor, "runs observed"],
    ) -> Iterator[dict[str, Any]]:
        """Rows of `influence` for runs at the main rate."""
        labels, classes = self.observed.labels, self.data.classes
        for n, (rate, _) in enumerate(self.runs):
            if rate == self.training.learning_rate:
                left = (moved[n] - sums[n].sum(1)).square().sum() / moved[n].square().sum()
                yield self.run(n) | {
                    "epoch": epoch,
                    "from_class": class_rows(sums[n], labels, classes).T.tolist(),
                    "measured": class_rows(moved[n][:, None], labels, classes)[:, 0].tolist(),
                    "unexplained": float(left),
                }


def pulls(
    model: nn.Module, observed: Images, updating: Images, classes: int, rate: float
) -> Float[ndarray, "classes classes"]:
    """`pulls[u][o]`: change of p_u on class-o images by one class-u image's share of a step.

    To first order, `Δp = p Δ log p`: probabilities show what an update visibly changes.

    **Arguments:** `rate`: η/B, the learning rate per image.
    """
    targets = one_hot(updating.labels, classes)
    forces = pair_forces(model, observed.pixels, updating.pixels, targets, rate)
    of_label = forces[:, torch.arange(len(updating)), updating.labels]
    with torch.no_grad():
        probabilities = model(observed.pixels).softmax(-1)[:, updating.labels]
    return class_means(probabilities * of_label, observed.labels, updating.labels, classes).T


def kernel_by_class(
    model: nn.Module, images: Images, classes: int
) -> Float[ndarray, "classes classes"]:
    """Mean ‖C K C‖_F over the images of every pair of classes."""
    norms = centred_norms(classifier_kernel(model, images.pixels, images.pixels, classes))
    return class_means(norms, images.labels, images.labels, classes, same=True)


def class_means(
    values: Float[Tensor, "observed updating"],
    observed: Int[Tensor, " observed"],
    updating: Int[Tensor, " updating"],
    classes: int,
    *,
    same: bool = False,
) -> Float[ndarray, "classes classes"]:
    """Mean over the image pairs of every pair of classes, observed × updating.

    NaN for a pair of classes without image pairs.

    **Arguments:** `same`: both sides are the same images, and no image is paired with itself.
    """
    counted = 1 - torch.eye(*values.shape) if same else torch.ones(values.shape)
    counted = counted.to(values).double()
    rows, columns = (one_hot(labels, classes).double() for labels in (observed, updating))
    means = (rows.T @ (values.double() * counted) @ columns) / (rows.T @ counted @ columns)
    return means.cpu().numpy()


def class_rows(
    values: Float[Tensor, "images columns"], labels: Int[Tensor, " images"], classes: int
) -> Float[ndarray, "classes columns"]:
    """Mean of the rows of each class."""
    members = one_hot(labels, classes).double()
    means: ndarray = ((members.T @ values.double()) / members.sum(0)[:, None]).cpu().numpy()
    return means


def _ranks(states: Records) -> Iterator[dict[str, Any]]:
    """Every two epochs of each run."""
    by_run = sorted(states, key=lambda state: (state["learning_rate"], state["seed"]))
    for earlier, later in combinations(by_run, 2):
        run = {name: earlier[name] for name in ("network", "learning_rate", "seed")}
        if run.items() <= later.items():
            pairs = np.triu_indices(len(earlier["kernel"]))
            first, second = (np.array(state["kernel"])[pairs] for state in (earlier, later))
            yield run | {
                "first": earlier["epoch"],
                "second": later["epoch"],
                "correlation": float(rank_correlation(first, second)),
                "growth": float(np.median(second / first)) - 1,
            }
