"""Training targets of classifiers: given labels, some deliberately wrong, and soft targets.

Sources: label smoothing, Szegedy et al. (arXiv 1512.00567); distillation, Hinton et al.
(arXiv 1503.02531); ESKD, Cho & Hariharan (arXiv 1910.01348); Filter-KD, Ren, Guo & Sutherland,
*Better Supervisory Signals* (ICLR 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from dynolab.errors import ConfigError
from experiments.chapters.classifiers.many import seed_for

FILTER_DECAY = 0.95


@dataclass(frozen=True)
class NoisyLabels:
    """Labels given to training, and the true ones."""

    given: Int[Tensor, " examples"]
    true: Int[Tensor, " examples"]

    @property
    def wrong(self) -> Bool[Tensor, " examples"]:
        """Whether each given label differs from the true one."""
        return self.given != self.true


def check_labels(labels: Int[Tensor, " examples"], classes: int, field: str = "labels") -> None:
    """Checks that labels can be trained on.

    **Raises:** `ConfigError` for labels outside `0 … classes − 1`, and for a class without
    examples: its logit would only ever be pushed down.
    """
    outside = labels[(labels < 0) | (labels >= classes)]
    if outside.numel():
        raise ConfigError(
            field, int(outside[0]), f"is out of range; labels must lie in 0 … {classes - 1}"
        )
    empty = (torch.bincount(labels, minlength=classes) == 0).nonzero().flatten().tolist()
    if empty:
        raise ConfigError(
            field,
            f"no example of class {empty[0]}",
            "every class needs one in training; give more examples, or fewer classes",
        )


def flip_labels(
    labels: Int[Tensor, " examples"], classes: int, noise: float, generator: torch.Generator
) -> NoisyLabels:
    """Gives exactly `round(noise · N)` examples a label drawn evenly from the *other* classes.

    A draw over all K classes would leave 1/K of them right: effective noise of r(K−1)/K.

    **Arguments:** `noise`: in [0, 1).

    **Raises:** `ConfigError` for labels out of range, a class without examples.
    """
    check_labels(labels, classes)
    count = round(noise * len(labels))
    chosen = torch.randperm(len(labels), generator=generator)[:count]
    shift = torch.randint(1, classes, (count,), generator=generator)
    given = labels.clone()
    given[chosen] = (labels[chosen] + shift.to(labels.dtype)) % classes
    return NoisyLabels(given, labels)


def seeded_flip(
    labels: Int[Tensor, " examples"], classes: int, noise: float, seed: int
) -> NoisyLabels:
    """`flip_labels` with a generator of its own for the seed."""
    generator = torch.Generator().manual_seed(seed_for("wrong labels", seed))
    return flip_labels(labels, classes, noise, generator)


def one_hot(labels: Int[Tensor, " examples"], classes: int) -> Float[Tensor, "examples classes"]:
    """`e_y`."""
    return functional.one_hot(labels.long(), classes).float()


def smoothed(
    labels: Int[Tensor, " examples"], classes: int, epsilon: float
) -> Float[Tensor, "examples classes"]:
    """`(1 − ε) e_y + ε/K`, ε in [0, 1)."""
    return (1 - epsilon) * one_hot(labels, classes) + epsilon / classes


def distillation(
    logits: Float[Tensor, "batch classes"],
    target: Float[Tensor, "batch classes"],
    temperature: float = 1.0,
) -> Float[Tensor, ""]:
    """`2τ² KL(q ‖ softmax(z/τ))`, mean over the batch, without a hard-label term.

    q is a teacher's distribution at the same temperature. The force is `G = 2τ (p_τ − q)`: at
    τ = 1 twice that of cross-entropy on q.
    """
    logp = (logits / temperature).log_softmax(-1)
    divergence = (torch.xlogy(target, target) - target * logp).sum(-1)
    return 2 * temperature**2 * divergence.mean()


class FilterTable:
    """The filter of Filter-KD: a moving average of predictions for every training example.

    `q_i ← p_i` at the first visit, then `q_i ← decay·q_i + (1 − decay)·p_i`, with p_i
    predicted *before* the step on the example. `q` has leading dimensions for models that train
    side by side; examples not yet visited hold zeros.
    """

    def __init__(self, *shape: int, decay: float = FILTER_DECAY) -> None:
        """`shape` is (…, examples, classes); `decay` lies in [0, 1)."""
        self.decay = decay
        self.q = torch.zeros(shape)
        self._seen = torch.zeros(shape[:-1], dtype=torch.bool)

    @torch.no_grad()
    def visit(
        self, index: Int[Tensor, "*models batch"], p: Float[Tensor, "*models batch classes"]
    ) -> None:
        """Averages in a batch's predictions; no example may occur twice in one model's batch."""
        at = index.unsqueeze(-1).expand_as(p)
        seen = self._seen.gather(-1, index).unsqueeze(-1)
        old = self.q.gather(-2, at)
        self.q.scatter_(-2, at, torch.where(seen, self.decay * old + (1 - self.decay) * p, p))
        self._seen.scatter_(-1, index, torch.ones_like(index, dtype=torch.bool))

    def targets(
        self, otherwise: Float[Tensor, "*models examples classes"]
    ) -> Float[Tensor, "*models examples classes"]:
        """The student's targets: q, or `otherwise` for examples that were never visited."""
        return torch.where(self._seen.unsqueeze(-1), self.q, otherwise)


def disagreement(
    q: Float[Tensor, "*models examples classes"], labels: Int[Tensor, "*models examples"]
) -> Float[Tensor, "*models examples"]:
    """`1 − q_y`: how far predictions q disagree with the given label, between 0 and 1."""
    return 1 - q.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)
