"""Learning paths of all training examples, on Gaussian clouds with exact p* and on images.

A path is how an example's prediction moves in the probability simplex. Data are `toy` (Gaussian
clouds), `images` (some labels flipped) and `human` (images that people labelled). Tables:

- `scores`: one row for each data set and seed, lists over its training examples. `difficulty`:
  ‖e_y − p*‖₂, with p* exact, from people's labels, or predicted by networks trained on other
  images; `zigzag`: excess length of the path; `wrong`: the label was flipped or, for the toy data,
  is not p*'s likeliest. `auc` of the zig-zag score at finding wrong labels and `rank_correlation`
  of it with the difficulty. `filtered_error`, `last_error`: E‖q − p*‖₂ of the filtered and of the
  last prediction.
- `epochs`: means over the examples of a difficulty, in nats; epoch 0 is before training. `own`:
  the effect of each example's share of its own steps on its given label's log p; `others`: the
  rest of the epoch's change; `label`, `truth`: probabilities of the given label and of the true
  class (for the toy data, p*'s likeliest) at the epoch's end.
- `paths`: some examples' filtered paths; `truth` is p*, `names` name the corners, `label` is the
  given label's place among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from dynolab.statistics import auc, rank_correlation
from experiments.chapters.classifiers.labels import FILTER_DECAY, one_hot, seeded_flip
from experiments.chapters.classifiers.many import (
    Build,
    ManyModels,
    SGDConfig,
    Stacked,
    batch_orders,
    seed_for,
    train_many,
)
from experiments.chapters.images import ImageSplits

GROUPS = ("easy", "medium", "hard", "mislabelled")
SMOOTHING = 0.5
"""Weight of the past in the moving average that smooths out the jitter of single steps."""


class GaussianConfig(BaseModel):
    """Gaussian clouds; defaults are from Ren, Guo & Sutherland (*Better Supervisory Signals*)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    classes: int = Field(3, ge=2, description="Classes K, one cloud each.")
    dimensions: int = Field(30, ge=1, description="Dimensions of the inputs.")
    variance: float = Field(6.0, gt=0, description="σ² of every cloud in every dimension.")
    examples: int = Field(600, ge=10, description="Training examples.")


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


def study_paths(
    build: Build,
    data: ImageSplits,
    config: PathStudyConfig,
    seeds: Sequence[int],
    toy_build: Build,
) -> dict[str, list[dict[str, Any]]]:
    """Follows every example of the clouds, the images and, if the data has them, human labels.

    **Returns:** the tables of this module.
    """
    train = data.train
    truth = outside_predictions(build, data, config.training, seeds)
    studied = {
        "toy": [gaussian_toy(config.toy, seed) for seed in seeds],
        "images": [
            Task(train.pixels, noisy.given, train.labels, truth)
            for seed in seeds
            for noisy in (seeded_flip(train.labels, data.classes, config.noise, seed),)
        ],
    }
    if train.human is not None:
        given = Task(train.pixels, train.labels, train.human.argmax(-1), train.human)
        studied["human"] = [given] * len(seeds)
    tables: dict[str, list[dict[str, Any]]] = {"scores": [], "epochs": [], "paths": []}
    for name, tasks in studied.items():
        of_toy = name == "toy"
        make, training = (toy_build, config.toy_training) if of_toy else (build, config.training)
        classes = config.toy.classes if of_toy else data.classes
        shape = tuple(tasks[0].inputs.shape[1:])
        many = ManyModels([make(shape, classes, seed) for seed in seeds])
        logps, of_label = follow(many, tasks, classes, training, seeds)
        for n, (task, seed) in enumerate(zip(tasks, seeds, strict=True)):
            path, run = logps[:, n].exp(), {"data": name, "seed": seed}
            score = zigzag(path, task.labels)
            tables["scores"].append(run | _scores(task, path, score))
            tables["epochs"] += [run | row for row in _epochs(task, logps[:, n], of_label[:, n])]
            if n == 0:
                shown = _typical_paths(task, path, score, config.shown)
                tables["paths"] += [{"data": name} | row for row in shown]
    return tables


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
    training = training.model_copy(update={"batch_size": min(training.batch_size, len(labels))})
    many = ManyModels([build(data.train.shape, data.classes, seed) for seed in seeds])
    orders = batch_orders(len(labels), training, seeds)
    inputs, targets, images = (
        tensor.to(many.device)
        for tensor in (inputs, one_hot(labels, data.classes), data.train.pixels)
    )
    for _ in train_many(many, inputs, targets, orders, training):
        pass
    return many.logits(images).softmax(-1).mean(0).cpu()


def follow(
    many: ManyModels, tasks: Sequence[Task], classes: int, training: SGDConfig, seeds: Sequence[int]
) -> tuple[Float[Tensor, "times seeds examples classes"], Float[Tensor, "epochs seeds examples"]]:
    """Trains one network per seed on its task, and predicts all examples after every epoch.

    **Returns:** log-probabilities, the first before training; and how much an example's own share
    of its steps changed the log p of its given label in each epoch, in nats.
    """
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

    @torch.no_grad()
    def predicted() -> Float[Tensor, "seeds examples classes"]:
        logits = many.logits(inputs[0]) if same else many.logits(inputs, own=True)
        return logits.log_softmax(-1).cpu()

    logps = [predicted()]
    of_label = torch.zeros(training.epochs, *labels.shape)
    for step in train_many(many, table, targets, orders + shift, training):
        rows = orders[:, step.number - 1]
        given = labels.gather(1, rows).to(many.device)
        changes = own_changes(many, step.before, table[step.rows], given, rate).cpu()
        of_label[(step.number - 1) // per_epoch].scatter_add_(1, rows, changes)
        if step.number % per_epoch == 0:
            logps.append(predicted())
    return torch.stack(logps), of_label


def groups_of(task: Task) -> dict[str, Int[Tensor, " some"]]:
    """Correctly labelled examples in thirds by base difficulty, and the mislabelled ones."""
    right, wrong = (~task.wrong).nonzero().flatten(), task.wrong.nonzero().flatten()
    order = right[base_difficulty(task.truth, task.labels)[right].argsort()]
    parts = [part.to(right) for part in order.tensor_split(3)]
    return dict(zip(GROUPS, [*parts, wrong], strict=True))


def _scores(
    task: Task,
    path: Float[Tensor, "times examples classes"],
    score: Float[Tensor, " examples"],
) -> dict[str, Any]:
    difficulty, wrong = base_difficulty(task.truth, task.labels), task.wrong
    filtered_error, last_error = (
        float((prediction - task.truth).norm(dim=-1).mean())
        for prediction in (filtered(path, FILTER_DECAY)[-1], path[-1])
    )
    return {
        "difficulty": difficulty.tolist(),
        "zigzag": score.tolist(),
        "wrong": wrong.tolist(),
        "auc": float(auc(score.numpy(), wrong.numpy())),
        "rank_correlation": float(rank_correlation(score.numpy(), difficulty.numpy())),
        "filtered_error": filtered_error,
        "last_error": last_error,
    }


def _epochs(
    task: Task,
    logps: Float[Tensor, "times examples classes"],
    of_label: Float[Tensor, "epochs examples"],
) -> Iterator[dict[str, Any]]:
    rows = torch.arange(len(task.labels))
    label, truth = logps[:, rows, task.labels], logps[:, rows, task.right].exp()
    nothing = torch.zeros_like(of_label[:1])
    of_label = torch.cat([nothing, of_label])
    others = torch.cat([nothing, label.diff(dim=0)]) - of_label
    columns = {"own": of_label, "others": others, "label": label.exp(), "truth": truth}
    for group, index in groups_of(task).items():
        if len(index):
            for epoch in range(len(of_label)):
                means = {name: float(all_[epoch, index].mean()) for name, all_ in columns.items()}
                yield {"group": group, "epoch": epoch, **means}


def _typical_paths(
    task: Task,
    path: Float[Tensor, "times examples classes"],
    score: Float[Tensor, " examples"],
    count: int,
) -> Iterator[dict[str, Any]]:
    """Paths of typical examples: those whose score is in the middle of their group."""
    smooth = filtered(path)
    for group, index in groups_of(task).items():
        ranked = index[score[index].argsort()]
        middle = max(0, (len(ranked) - count) // 2)
        for example in ranked[middle : middle + count].tolist():
            corners, names = _corners(task, example)
            yield {
                "group": group,
                "names": names,
                "label": names.index(str(int(task.labels[example]))),
                "zigzag": float(score[example]),
                "truth": (task.truth[example] @ corners).tolist(),
                "path": (smooth[:, example] @ corners).tolist(),
            }


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


def gaussian_toy(config: GaussianConfig, seed: int) -> Task:
    """`y` uniform, `x ~ N(μ_y, σ² I)` with each entry of μ drawn from {−1, 0, 1}.

    `p*(k | x) ∝ exp(−‖x − μ_k‖²/2σ²)`: labels are drawn from it, so hard examples often have
    another label than the likeliest class.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randint(-1, 2, (config.classes, config.dimensions), generator=generator).float()
    labels = torch.randint(config.classes, (config.examples,), generator=generator)
    noise = torch.randn(config.examples, config.dimensions, generator=generator)
    inputs = centres[labels] + config.variance**0.5 * noise
    squares = (inputs[:, None] - centres).square().sum(-1)
    truth = (-squares / (2 * config.variance)).softmax(-1)
    return Task(inputs, labels, truth.argmax(-1), truth)


def filtered(
    path: Float[Tensor, "times *examples classes"], smoothing: float = SMOOTHING
) -> Float[Tensor, "times *examples classes"]:
    """`p̄_t = s p̄_{t−1} + (1 − s) p_t` from `p̄_0 = p_0`; p̄ keeps its value where p_t is NaN.

    Leading NaNs of an example stay NaN.
    """
    average, averages = path[0], []
    for p in path:
        mixed = smoothing * average + (1 - smoothing) * p
        average = torch.where(p.isnan(), average, torch.where(average.isnan(), p, mixed))
        averages.append(average)
    return torch.stack(averages)


def zigzag(
    path: Float[Tensor, "times *examples classes"],
    labels: Int[Tensor, "*examples"],
    smoothing: float = SMOOTHING,
) -> Float[Tensor, "*examples"]:
    """How much longer the path to the given label is than a straight line.

    `Z = Σ_t ‖p̄_{t+1} − p̄_t‖ + ‖e_y − p̄_T‖ − ‖e_y − p̄_0‖ ≥ 0`

    with p̄ the filtered path and y the training label. A path that goes straight to the label has
    0; one that first visits another class, or ends there, has the length of its detour. The last
    stretch to e_y counts whether or not training got there, so that an example whose label was
    never learned scores as high as one that turned back late. The papers mention a zig-zag score
    without a formula; this one is our choice.
    """
    smooth = filtered(path, smoothing)
    label = torch.nn.functional.one_hot(labels.long(), path.shape[-1]).to(path)
    start = smooth.gather(0, (~smooth.isnan()).int().argmax(0, keepdim=True)).squeeze(0)
    length = (smooth[1:] - smooth[:-1]).norm(dim=-1).nansum(0)
    return length + (label - smooth[-1]).norm(dim=-1) - (label - start).norm(dim=-1)


def own_changes(
    many: ManyModels,
    weights: Stacked,
    inputs: Float[Tensor, "models batch ..."],
    labels: Int[Tensor, "models batch"],
    rate: float,
) -> Float[Tensor, "models batch"]:
    """Change of each example's label log p under its own share of a step, in nats.

    `log p_y(w + rate ∇ log p_y) − log p_y(w)`, `rate` = η/B: measured rather than to first
    order, because wrong labels have steep gradients and `rate ‖∇ log p_y‖²` overshoots far. To
    first order an example always pulls its own label up.
    """

    def logp(weights_of_task: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(many.module, weights_of_task, (x[None],))[0]
        return logits.log_softmax(-1).gather(0, y[None])[0]

    def change(weights_of_task: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        gradients, before = grad_and_value(logp)(weights_of_task, x, y)
        return (
            logp({name: w + rate * gradients[name] for name, w in weights_of_task.items()}, x, y)
            - before
        )

    changes: Tensor = vmap(vmap(change, (None, 0, 0)))(dict(weights), inputs, labels)
    return changes


def base_difficulty(
    truth: Float[Tensor, "examples classes"], labels: Int[Tensor, " examples"]
) -> Float[Tensor, " examples"]:
    """`‖e_y − p*‖₂`: distance of the training label from the truth, 0 to √2."""
    label = torch.nn.functional.one_hot(labels.long(), truth.shape[-1]).to(truth)
    return (label - truth).norm(dim=-1)
