"""Trains networks over learning rates and seeds, and measures forces during training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from dynolab.chapters.classification.rows import (
    ClassifierState,
    ClassInfluence,
    Divergence,
    Grid,
    KernelRanks,
)
from dynolab.chapters.classifiers.forces import (
    centred_norms,
    classifier_kernel,
    label_forces,
    pair_forces,
)
from dynolab.chapters.classifiers.labels import one_hot
from dynolab.chapters.classifiers.many import (
    Build,
    ManyModels,
    ManyStep,
    SGDConfig,
    Stacked,
    batch_orders,
    train_many,
)
from dynolab.chapters.images.images import Images, ImageSplits
from dynolab.errors import ConfigError
from dynolab.statistics import rank_correlation


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


@dataclass
class ForceFindings:
    """Result rows of all networks, learning rates and seeds.

    A learning rate at which a network diverged with any seed has rows in `diverged` only.
    """

    states: list[ClassifierState] = field(default_factory=list)
    ranks: list[KernelRanks] = field(default_factory=list)
    influences: list[ClassInfluence] = field(default_factory=list)
    diverged: list[Divergence] = field(default_factory=list)


@dataclass(frozen=True)
class Watched:
    """Watched test images and as many training images to update on, equally many of each class."""

    observed: Images
    updating: Images
    classes: int

    @classmethod
    def of(cls, data: ImageSplits, each: int) -> Watched:
        """Takes the first images of every class.

        **Raises:** `ConfigError` if a class has too few.
        """
        for name, images in (("test", data.test), ("train", data.train)):
            fewest = int(torch.bincount(images.labels, minlength=data.classes).min())
            if fewest < each:
                raise ConfigError(
                    "forces.watched",
                    each,
                    f"a class has {fewest} images in {name}; raise data.{name}, or watch fewer",
                )
        return cls(
            _first(data.test, each, data.classes),
            _first(data.train, each, data.classes),
            data.classes,
        )


def study_forces(
    build: Build, network: str, data: ImageSplits, config: ForceStudyConfig, seeds: Sequence[int]
) -> ForceFindings:
    """Trains a network with all learning rates and seeds at once, and measures forces meanwhile.

    Runs with the same seed share initial weights and the order of batches.

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
    findings, watched = ForceFindings(), Watched.of(data, config.watched)
    measure = _Measure(many, network, runs, data, watched, training)
    per_epoch = len(data.train) // training.batch_size
    influences = {
        n: _Influence(watched, measure.logps(many.weights)[n])
        for n, (rate, _) in enumerate(runs)
        if rate == training.learning_rate
    }
    stable = torch.ones(len(runs), dtype=torch.bool)
    for step in steps:
        epoch, within = divmod(step.number - 1, per_epoch)
        newly_diverged = stable & ~_finite(step.after).cpu()
        stable &= ~newly_diverged
        findings.diverged += [
            Divergence(network=network, learning_rate=runs[n][0], seed=runs[n][1], step=step.number)
            for n in newly_diverged.nonzero().flatten().tolist()
        ]
        _check_main_rate(findings.diverged, training)
        if within == 0 and epoch in config.epochs:
            findings.states += measure.states(epoch, step, stable)
        if epoch < config.influence_epochs:
            for n, influence in influences.items():
                influence.add(many.model(n, step.before), data, step.rows[n], training)
            if step.number == per_epoch * config.influence_epochs:
                now = measure.logps(step.after)
                findings.influences += [
                    influence.row(network, *runs[n], config.influence_epochs, now[n])
                    for n, influence in influences.items()
                ]
    if training.epochs in config.epochs:
        findings.states += measure.states(training.epochs, None, stable)
    diverged_rates = {row.learning_rate for row in findings.diverged}
    findings.states = [row for row in findings.states if row.learning_rate not in diverged_rates]
    findings.ranks = [
        row
        for run in runs
        if run[0] not in diverged_rates
        for row in _ranks(findings.states, network, *run)
    ]
    return findings


def _finite(weights: Stacked) -> Bool[Tensor, " runs"]:
    """Whether all weights of each run are finite."""
    return torch.stack([w.flatten(1).isfinite().all(1) for w in weights.values()]).all(0)


def _check_main_rate(diverged: Sequence[Divergence], training: SGDConfig) -> None:
    for row in diverged:
        if row.learning_rate == training.learning_rate:
            raise ConfigError(
                "forces.training.learning_rate",
                training.learning_rate,
                f"{row.network} diverges at step {row.step}, seed {row.seed}; lower it",
            )


@dataclass(frozen=True)
class _Measure:
    """Measures all runs at one moment of training."""

    many: ManyModels
    network: str
    runs: Sequence[tuple[float, int]]
    data: ImageSplits
    watched: Watched
    training: SGDConfig

    def logps(self, weights: Stacked) -> Float[Tensor, "runs observed classes"]:
        """Log-probabilities of the watched images."""
        return self.many.logits(self.watched.observed.pixels, weights).log_softmax(-1)

    def states(
        self, epoch: int, step: ManyStep | None, stable: Bool[Tensor, " runs"]
    ) -> Iterator[ClassifierState]:
        """Measures the runs at the start of an epoch and over the step that follows.

        **Arguments:** `step`: None after the last epoch; `stable`: runs that have not diverged.
        """
        before = self.many.weights if step is None else step.before
        test = self.many.logits(self.data.test.pixels, before)
        labels = self.data.test.labels.expand(len(self.runs), -1)
        moved = None if step is None else self.logps(step.after) - self.logps(before)
        for n in stable.nonzero().flatten().tolist():
            rate, seed = self.runs[n]
            model = self.many.model(n, before)
            unexplained = change = float("nan")
            if step is not None and moved is not None:
                rows = step.rows[n]
                pushes = pair_forces(
                    model,
                    self.watched.observed.pixels,
                    self.data.train.pixels[rows],
                    one_hot(self.data.train.labels[rows], self.data.classes),
                    rate,
                ).mean(1)
                unexplained = float((moved[n] - pushes).square().sum() / moved[n].square().sum())
                change = float(moved[n].square().mean().sqrt())
            yield ClassifierState(
                network=self.network,
                learning_rate=rate,
                seed=seed,
                epoch=epoch,
                accuracy=float((test[n].argmax(-1) == labels[n]).float().mean()),
                loss=float(nn.functional.cross_entropy(test[n], labels[n])),
                unexplained=unexplained,
                change=change,
                predictions=grid(class_rows(test[n].softmax(-1), labels[n], self.data.classes)),
                pulls=grid(pulls(model, self.watched, rate / self.training.batch_size)),
                kernel=grid(kernel_by_class(model, self.watched)),
            )


def pulls(model: nn.Module, watched: Watched, rate: float) -> Float[ndarray, "classes classes"]:
    """`pulls[u][o]`: change of p_u on class-o images by one class-u image's share of a step.

    To first order, `Δp = p Δ log p`: probabilities show what an update visibly changes.

    **Arguments:** `rate`: η/B, the learning rate per image.
    """
    updating, observed = watched.updating, watched.observed
    forces = pair_forces(
        model, observed.pixels, updating.pixels, one_hot(updating.labels, watched.classes), rate
    )
    own = forces[:, torch.arange(len(updating)), updating.labels]
    with torch.no_grad():
        probabilities = model(observed.pixels).softmax(-1)[:, updating.labels]
    moved = (probabilities * own).double().cpu().numpy()
    rows, columns = (side.labels.cpu().numpy() for side in (observed, updating))
    return class_means(moved, rows, columns, watched.classes).T


def kernel_by_class(model: nn.Module, watched: Watched) -> Float[ndarray, "classes classes"]:
    """Mean ‖C K C‖_F over the watched images of every pair of classes."""
    images = watched.observed
    kernel = classifier_kernel(model, images.pixels, images.pixels, watched.classes)
    labels = images.labels.cpu().numpy()
    norms = centred_norms(kernel).double().cpu().numpy()
    return class_means(norms, labels, labels, watched.classes, same=True)


def class_means(
    values: Float[ndarray, "observed updating"],
    observed: Int[ndarray, " observed"],
    updating: Int[ndarray, " updating"],
    classes: int,
    *,
    same: bool = False,
) -> Float[ndarray, "classes classes"]:
    """Mean over the image pairs of every pair of classes, observed × updating.

    NaN for a pair of classes without image pairs.

    **Arguments:** `same`: both sides are the same images, and no image is paired with itself.
    """
    kept = 1 - np.eye(*values.shape) if same else np.ones(values.shape)
    rows, columns = np.eye(classes)[observed], np.eye(classes)[updating]
    with np.errstate(invalid="ignore"):
        return (rows.T @ (values * kept) @ columns) / (rows.T @ kept @ columns)


class _Influence:
    """Sums the forces of all steps on the watched images, by the updating image's class."""

    def __init__(self, watched: Watched, start: Float[Tensor, "observed classes"]) -> None:
        self._watched, self._start = watched, self._own(watched, start)
        self._sums = start.new_zeros(len(start), watched.classes, dtype=torch.float64)

    @staticmethod
    def _own(watched: Watched, logps: Float[Tensor, "observed classes"]) -> Tensor:
        labels = watched.observed.labels
        return logps[torch.arange(len(labels)), labels].double()

    def add(
        self, model: nn.Module, data: ImageSplits, rows: Int[Tensor, " batch"], training: SGDConfig
    ) -> None:
        """Adds the forces of one step, at the weights before it."""
        labels = data.train.labels[rows]
        targets = one_hot(labels, data.classes)
        pushes = label_forces(
            model,
            self._watched.observed.pixels,
            self._watched.observed.labels,
            data.train.pixels[rows],
            targets,
            training.learning_rate,
        )
        self._sums += (pushes / len(rows)).double() @ targets.double()

    def row(
        self,
        network: str,
        rate: float,
        seed: int,
        epoch: int,
        now: Float[Tensor, "observed classes"],
    ) -> ClassInfluence:
        """The accumulated sums as a result row."""
        measured = self._own(self._watched, now) - self._start
        labels, classes = self._watched.observed.labels, self._watched.classes
        error = (measured - self._sums.sum(1)).square().sum() / measured.square().sum()
        means = class_rows(measured[:, None], labels, classes)[:, 0]
        return ClassInfluence(
            network=network,
            learning_rate=rate,
            seed=seed,
            epoch=epoch,
            from_class=grid(class_rows(self._sums, labels, classes).T),
            measured=tuple(means.tolist()),
            unexplained=float(error),
        )


def _ranks(
    states: Sequence[ClassifierState], network: str, rate: float, seed: int
) -> Iterator[KernelRanks]:
    own = [state for state in states if (state.learning_rate, state.seed) == (rate, seed)]
    pairs = np.triu_indices(len(own[0].kernel))
    sizes = {state.epoch: np.array(state.kernel)[pairs] for state in own}
    for first, second in combinations(sorted(sizes), 2):
        yield KernelRanks(
            network=network,
            learning_rate=rate,
            seed=seed,
            first=first,
            second=second,
            correlation=float(rank_correlation(sizes[first], sizes[second])),
            growth=float(np.median(sizes[second] / sizes[first])) - 1,
        )


def class_rows(
    values: Float[Tensor, "images columns"], labels: Int[Tensor, " images"], classes: int
) -> Float[ndarray, "classes columns"]:
    """Mean of the rows of each class."""
    members = one_hot(labels, classes).double()
    means: ndarray = ((members.T @ values.double()) / members.sum(0)[:, None]).cpu().numpy()
    return means


def grid(values: Float[ndarray, "rows columns"]) -> Grid:
    """Converts an array to the nested tuples of result rows."""
    return tuple(tuple(float(value) for value in row) for row in values)


def _first(images: Images, each: int, classes: int) -> Images:
    places = [(images.labels == label).nonzero().flatten()[:each] for label in range(classes)]
    return images.take(torch.cat(places))
