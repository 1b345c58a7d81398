"""The rows of the analysis of classifiers: forces, kernels, learning paths."""

from __future__ import annotations

from typing import Literal

from dynolab.results.forces import Measured

Grid = tuple[tuple[float, ...], ...]
"""A matrix over pairs of classes."""


class ClassifierState(Measured):
    """A classifier at an epoch of its training, and the first step from there: `states.jsonl`.

    Measured on a few test images of every class. `unexplained` is
    `1 − R² = Σ(measured − predicted)²/Σ measured²` of the step's change of all their
    log-probabilities, predicted to first order from the step's batch; `change` is the root mean
    square of that change, in nats.

    - `predictions[o][k]`: mean probability of class k on the images of class o.
    - `pulls[u][o]`: first-order effect of one training image of class u, by its share of a step, on
      p_u of the images of class o; mean over the images.
    - `kernel[o][u]`: ‖C K C‖_F of the images of class o with those of class u, mean over pairs of
      different images, in squared logits.
    """

    network: str
    learning_rate: float
    seed: int
    epoch: int
    accuracy: float
    loss: float
    unexplained: float
    change: float
    predictions: Grid
    pulls: Grid
    kernel: Grid


class KernelRanks(Measured):
    """How stable the order of ‖C K C‖_F over class pairs is between two epochs: `ranks.jsonl`.

    `correlation` is Spearman's over the pairs of classes, including each class with itself;
    `growth` the median of the factor by which the norm grew, less one.
    """

    network: str
    learning_rate: float
    seed: int
    first: int
    second: int
    correlation: float
    growth: float


class Divergence(Measured):
    """A training whose weights became NaN or infinite at a step: `diverged.jsonl`."""

    network: str
    learning_rate: float
    seed: int
    step: int


class ClassInfluence(Measured):
    """Effect of the images of each class on the watched ones, over all steps up to an epoch.

    `from_class[u][o]`: `Σ_t −η/B Σ_{i of class u} A K G` on the given label's log p, first order,
    nats, mean over the watched images of class o: `influence.jsonl`. `measured[o]` is the actual
    change, `unexplained` 1 − R² of the sum over u against it, over the images.
    """

    network: str
    learning_rate: float
    seed: int
    epoch: int
    from_class: Grid
    measured: tuple[float, ...]
    unexplained: float


PathData = Literal["toy", "images", "human"]
"""Gaussian clouds with exact p*; images with some labels flipped; images that people labelled."""

Difficulty = Literal["easy", "medium", "hard", "mislabelled"]


class PathScores(Measured):
    """Scores of every training example's learning path: `scores.jsonl`.

    `difficulty` is ‖e_y − p*‖₂, with p* exact, from people's labels, or predicted by networks
    trained on other images; `zigzag`: excess length of the path; `wrong`: the label was flipped or,
    for the toy data, is not p*'s likeliest. `filtered_error` and `last_error` are E‖q − p*‖₂ of the
    filtered and of the last prediction.
    """

    data: PathData
    seed: int
    difficulty: tuple[float, ...]
    zigzag: tuple[float, ...]
    wrong: tuple[bool, ...]
    auc: float
    rank_correlation: float
    filtered_error: float
    last_error: float


class EpochInfluence(Measured):
    """Effect of an epoch on the examples of one difficulty, means in nats: `epochs.jsonl`.

    Epoch 0 is the state before training.

    `own` is the effect of each example's share of its own step on its given label's log p;
    `others` is the rest of the epoch's change. `label` and `truth` are mean probabilities of the
    given label and of the true class (for the toy data, p*'s likeliest) at the epoch's end.
    """

    data: PathData
    seed: int
    group: Difficulty
    epoch: int
    own: float
    others: float
    label: float
    truth: float


class ExamplePath(Measured):
    """One example's filtered path: `paths.jsonl`; `truth` is p*, `names` name the corners."""

    data: PathData
    group: Difficulty
    names: tuple[str, ...]
    label: int
    zigzag: float
    truth: tuple[float, ...]
    path: Grid
