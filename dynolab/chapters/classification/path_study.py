"""Learning paths of all training examples, on Gaussian clouds with exact p* and on images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from dynolab.chapters.classification.paths import base_difficulty, filtered, own_changes, zigzag
from dynolab.chapters.classification.rows import (
    Difficulty,
    EpochInfluence,
    ExamplePath,
    PathData,
    PathScores,
)
from dynolab.chapters.classifiers.labels import FILTER_DECAY, flip_labels, one_hot
from dynolab.chapters.classifiers.many import (
    Build,
    ManyModels,
    SGDConfig,
    batch_orders,
    train_many,
)
from dynolab.chapters.classifiers.seeds import seed_for
from dynolab.chapters.classifiers.toys import GaussianConfig, gaussian_toy
from dynolab.chapters.images.images import Images, ImageSplits
from dynolab.statistics import auc, rank_correlation

GROUPS: tuple[Difficulty, ...] = ("easy", "medium", "hard", "mislabelled")


class PathStudyConfig(BaseModel):
    """Trainings in which the path of every example is followed."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    toy: GaussianConfig = GaussianConfig()
    toy_training: SGDConfig = Field(
        SGDConfig(learning_rate=0.05, epochs=60), description="Training on the clouds."
    )
    training: SGDConfig = Field(
        SGDConfig(learning_rate=0.1, epochs=40), description="Training on images."
    )
    noise: float = Field(0.2, ge=0, lt=1, description="Share of images with a wrong label.")
    shown: int = Field(3, ge=1, description="Paths per difficulty that figures show.")

    @model_validator(mode="after")
    def _steps_are_plain(self) -> PathStudyConfig:
        self.toy_training.check_plain("paths.toy_training")
        self.training.check_plain("paths.training")
        return self


@dataclass
class PathFindings:
    """Result rows of all data sets and seeds."""

    scores: list[PathScores] = field(default_factory=list)
    epochs: list[EpochInfluence] = field(default_factory=list)
    paths: list[ExamplePath] = field(default_factory=list)


@dataclass(frozen=True)
class Task:
    """Training examples of one seed, with given labels and ground truth.

    `truth` is p*, exact or estimated; `right` is the true class of an example.
    """

    inputs: Float[Tensor, "examples ..."]
    labels: Int[Tensor, " examples"]
    right: Int[Tensor, " examples"]
    truth: Float[Tensor, "examples classes"]

    @property
    def wrong(self) -> Bool[Tensor, " examples"]:
        """Whether each given label differs from the true class."""
        return self.labels != self.right


@dataclass(frozen=True)
class Followed:
    """Paths of all examples through a training, the seeds side by side.

    `logps` begins before training; `own[t]` is how much an example's own share of its steps changed
    the log p of its given label in epoch t + 1, in nats.
    """

    logps: Float[Tensor, "times seeds examples classes"]
    own: Float[Tensor, "epochs seeds examples"]


def study_paths(
    build: Build,
    data: ImageSplits,
    config: PathStudyConfig,
    seeds: Sequence[int],
    toy_build: Build,
) -> PathFindings:
    """Follows every example of the clouds, the images and, if the data has them, human labels."""
    toys = [gaussian_toy(config.toy, seed) for seed in seeds]
    clouds = [Task(toy.inputs, toy.labels, toy.truth.argmax(-1), toy.truth) for toy in toys]
    estimated = outside_predictions(build, data, config.training, seeds)
    flipped = [_flipped_task(data, config, estimated, seed) for seed in seeds]
    studied: list[tuple[PathData, Sequence[Task]]] = [("toy", clouds), ("images", flipped)]
    train = data.train
    if train.human is not None:
        given = Task(train.pixels, train.labels, train.human.argmax(-1), train.human)
        studied.append(("human", [given] * len(seeds)))
    findings = PathFindings()
    for name, tasks in studied:
        of_toy = name == "toy"
        make, training = (toy_build, config.toy_training) if of_toy else (build, config.training)
        classes = config.toy.classes if of_toy else data.classes
        shape = tuple(tasks[0].inputs.shape[1:])
        many = ManyModels([make(shape, classes, seed) for seed in seeds])
        followed = follow(many, tasks, classes, training, seeds)
        for n, (task, seed) in enumerate(zip(tasks, seeds, strict=True)):
            path, groups = followed.logps[:, n].exp(), groups_of(task)
            score = zigzag(path, task.labels)
            findings.scores.append(_scores(name, seed, task, path, score))
            findings.epochs += _epoch_influences(
                name, seed, task, followed.logps[:, n], followed.own[:, n], groups
            )
            if n == 0:
                findings.paths += _typical_paths(name, task, path, score, groups, config.shown)
    return findings


def outside_predictions(
    build: Build, data: ImageSplits, training: SGDConfig, seeds: Sequence[int]
) -> Float[Tensor, "examples classes"]:
    """Estimates p* of the training images by networks trained on validation and test images only.

    Returns their mean prediction over seeds. Their initial weights differ from those of the
    networks whose paths are followed.
    """
    seeds = [seed_for("outside predictions", seed) for seed in seeds]
    outside = [data.validation, data.test]
    inputs = torch.cat([images.pixels for images in outside])
    labels = torch.cat([images.labels for images in outside])
    few = min(training.batch_size, len(labels))
    training = training.model_copy(update={"batch_size": few})
    many = ManyModels([build(data.train.shape, data.classes, seed) for seed in seeds])
    orders = batch_orders(len(labels), training, seeds)
    inputs, targets, images = (
        tensor.to(many.device)
        for tensor in (inputs, one_hot(labels, data.classes), data.train.pixels)
    )
    for _ in train_many(many, inputs, targets, orders, training):
        pass
    return many.logits(images).softmax(-1).mean(0).cpu()


def _flipped_task(
    data: ImageSplits, config: PathStudyConfig, truth: Float[Tensor, "examples classes"], seed: int
) -> Task:
    train: Images = data.train
    generator = torch.Generator().manual_seed(seed_for("wrong labels", seed))
    labels = flip_labels(train.labels, data.classes, config.noise, generator)
    return Task(train.pixels, labels.given, train.labels, truth)


def follow(
    many: ManyModels, tasks: Sequence[Task], classes: int, training: SGDConfig, seeds: Sequence[int]
) -> Followed:
    """Trains one network per seed on its task, and predicts all examples after every epoch."""
    inputs = torch.stack([task.inputs for task in tasks]).to(many.device)
    labels = torch.stack([task.labels for task in tasks])
    same = all(task.inputs is tasks[0].inputs for task in tasks)
    count = labels.shape[1]
    orders = batch_orders(count, training, seeds)
    # If inputs differ by seed, stack them as rows of one table.
    shift = 0 if same else count * torch.arange(len(tasks))[:, None, None]
    table = inputs[0] if same else inputs.flatten(0, 1)
    targets = one_hot(labels if same else labels.flatten(), classes).to(many.device)
    per_epoch, rate = count // training.batch_size, training.learning_rate / training.batch_size
    logps = [_logps(many, inputs, same)]
    own = torch.zeros(training.epochs, *labels.shape)
    for step in train_many(many, table, targets, orders + shift, training):
        rows = orders[:, step.number - 1]
        given = labels.gather(1, rows).to(many.device)
        changes = own_changes(many, step.before, table[step.rows], given, rate).cpu()
        own[(step.number - 1) // per_epoch].scatter_add_(1, rows, changes)
        if step.number % per_epoch == 0:
            logps.append(_logps(many, inputs, same))
    return Followed(torch.stack(logps), own)


def _logps(
    many: ManyModels, inputs: Float[Tensor, "seeds examples ..."], same: bool
) -> Float[Tensor, "seeds examples classes"]:
    with torch.no_grad():
        logits = many.logits(inputs[0]) if same else many.logits(inputs, own=True)
    return logits.log_softmax(-1).cpu()


def groups_of(task: Task) -> dict[Difficulty, Int[Tensor, " some"]]:
    """Correctly labelled examples in thirds by base difficulty, and the mislabelled ones."""
    right, wrong = (~task.wrong).nonzero().flatten(), task.wrong.nonzero().flatten()
    order = right[base_difficulty(task.truth, task.labels)[right].argsort()]
    parts = [part.to(right) for part in order.tensor_split(3)]
    return dict(zip(GROUPS, [*parts, wrong], strict=True))


def _scores(
    name: PathData,
    seed: int,
    task: Task,
    path: Float[Tensor, "times examples classes"],
    score: Float[Tensor, " examples"],
) -> PathScores:
    difficulty = base_difficulty(task.truth, task.labels)
    wrong = task.wrong
    return PathScores(
        data=name,
        seed=seed,
        difficulty=tuple(difficulty.tolist()),
        zigzag=tuple(score.tolist()),
        wrong=tuple(wrong.tolist()),
        auc=float(auc(score.numpy(), wrong.numpy())),
        rank_correlation=float(rank_correlation(score.numpy(), difficulty.numpy())),
        filtered_error=float((filtered(path, FILTER_DECAY)[-1] - task.truth).norm(dim=-1).mean()),
        last_error=float((path[-1] - task.truth).norm(dim=-1).mean()),
    )


def _epoch_influences(
    name: PathData,
    seed: int,
    task: Task,
    logps: Float[Tensor, "times examples classes"],
    own: Float[Tensor, "epochs examples"],
    groups: dict[Difficulty, Int[Tensor, " some"]],
) -> list[EpochInfluence]:
    rows = torch.arange(len(task.labels))
    label, truth = logps[:, rows, task.labels], logps[:, rows, task.right].exp()
    nothing = torch.zeros_like(own[:1])
    own = torch.cat([nothing, own])
    others = torch.cat([nothing, label.diff(dim=0)]) - own
    return [
        EpochInfluence(
            data=name,
            seed=seed,
            group=group,
            epoch=epoch,
            own=float(own[epoch, index].mean()),
            others=float(others[epoch, index].mean()),
            label=float(label[epoch, index].exp().mean()),
            truth=float(truth[epoch, index].mean()),
        )
        for group, index in groups.items()
        if len(index)
        for epoch in range(len(own))
    ]


def _typical_paths(
    name: PathData,
    task: Task,
    path: Float[Tensor, "times examples classes"],
    score: Float[Tensor, " examples"],
    groups: dict[Difficulty, Int[Tensor, " some"]],
    count: int,
) -> list[ExamplePath]:
    """Paths of typical examples: those whose score is in the middle of their group."""
    smooth, shown = filtered(path), []
    for group, index in groups.items():
        ranked = index[score[index].argsort()]
        middle = max(0, (len(ranked) - count) // 2)
        for example in ranked[middle : middle + count].tolist():
            corners, names = _corners(task, example)
            seen = smooth[:, example] @ corners
            shown.append(
                ExamplePath(
                    data=name,
                    group=group,
                    names=names,
                    label=names.index(str(int(task.labels[example]))),
                    zigzag=float(score[example]),
                    truth=tuple((task.truth[example] @ corners).tolist()),
                    path=tuple(tuple(p) for p in seen.tolist()),
                )
            )
    return shown


def _corners(task: Task, example: int) -> tuple[Float[Tensor, "classes 3"], tuple[str, ...]]:
    """Three corners to draw: the three classes, or the label, its strongest rival and others."""
    truth, label = task.truth[example], int(task.labels[example])
    classes = len(truth)
    if classes == 3:
        return torch.eye(3), ("0", "1", "2")
    rivals = truth.clone()
    rivals[label] = -1
    rival = int(task.right[example]) if task.wrong[example] else int(rivals.argmax())
    corner = torch.full((classes,), 2)
    corner[label], corner[rival] = 0, 1
    return torch.nn.functional.one_hot(corner, 3).float(), (str(label), str(rival), "others")
