"""How fast kinds of examples are learned: clean or noisy, coherent or contradictory.

Speed is measured by the influence that training accumulates on the examples.

One step of full-batch gradient descent on the mean loss moves `log p(y_o | x_o)` by

    Δ_o = η/N Σ_u ⟨∇ log p_o, ∇ log p_u⟩ + O(η²),

a sum over the updating examples u: the product A·K·G with the label's row of A and the force
G_u = p − e_y. Its sum over the steps is the *accumulated influence*, which splits into the
influence of an example on itself and of each group of other examples on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional

from dynolab.chapters.classifiers.gram import gradient_gram, without_layer
from dynolab.chapters.classifiers.labels import flip_labels
from dynolab.chapters.classifiers.many import Build
from dynolab.chapters.classifiers.toys import coherent_and_contradictory
from dynolab.chapters.images.images import Images
from dynolab.chapters.supervision.rows import Contrast, SpeedRow
from dynolab.chapters.transfer.adaptation import AdaptationConfig


class SpeedConfig(BaseModel):
    """Full-batch trainings that account for the influences of every step."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    examples: int = Field(120, ge=4, description="Examples of each comparison.")
    noise: float = Field(0.4, ge=0, lt=1, description="Share of images with a wrong label.")
    steps: int = Field(200, ge=1, description="Steps of gradient descent.")
    learning_rate: float = Field(
        0.1, gt=0, description="Step size on the mean loss; small enough for first order to hold."
    )
    points: int = Field(50, ge=2, description="Steps kept for the figure.")
    adaptation: AdaptationConfig = AdaptationConfig()


@dataclass(frozen=True)
class Influences:
    """Influence of full-batch training on its own examples, up to each step, in nats.

    Entry 0 of a path is before training. `from_groups[t, o, g]` is the accumulated first-order
    influence on example o of the other examples of group g, `own[t, o]` its influence
    on itself, `measured[t, o]` the change of `log p(y_o | x_o)` since the start.
    """

    measured: Float[Tensor, "steps examples"]
    own: Float[Tensor, "steps examples"]
    from_groups: Float[Tensor, "steps examples groups"]

    @property
    def total(self) -> Float[Tensor, "steps examples"]:
        """Accumulated influence of all examples."""
        return self.own + self.from_groups.sum(-1)


def accumulate(
    model: nn.Module,
    inputs: Float[Tensor, "examples ..."],
    labels: Int[Tensor, " examples"],
    groups: Int[Tensor, " examples"],
    *,
    steps: int,
    learning_rate: float,
) -> Influences:
    """Trains a copy of a network on all examples at once and accumulates every step's influences.

    **Arguments:** `groups`: group of every example, counted from 0.
    """
    model, rows = deepcopy(model), torch.arange(len(labels))
    weights = list(model.parameters())
    generic = without_layer(model, inputs)
    members = functional.one_hot(groups.long()).to(inputs.dtype)
    measured: list[Tensor] = []
    own, others = [torch.zeros(len(labels)).to(inputs)], [torch.zeros_like(members)]
    for step in range(steps + 1):
        logits = model(inputs)
        logps = logits.log_softmax(-1)
        measured.append(logps[rows, labels].detach())
        if step == steps:
            break
        # ∂ log p_y/∂z = e_y − p: the label's row of A, and minus the force.
        pull = (functional.one_hot(labels, logits.shape[-1]) - logps.exp()).detach()[:, None]
        gram = gradient_gram(model, inputs, pull, inputs, pull, generic=generic)[:, :, 0, 0]
        influence = learning_rate / len(labels) * gram
        self_influence = influence.diagonal()
        own.append(own[-1] + self_influence)
        others.append(others[-1] + influence @ members - self_influence[:, None] * members)
        gradients = torch.autograd.grad(functional.nll_loss(logps, labels), weights)
        with torch.no_grad():
            for w, gradient in zip(weights, gradients, strict=True):
                w.sub_(learning_rate * gradient)
    paths = torch.stack(measured)
    return Influences(paths - paths[0], torch.stack(own), torch.stack(others))


def speed(path: Float[Tensor, " steps"]) -> float:
    """Mean of a path over the steps, the area under it, in nats.

    Of two paths to the same end, the steeper one is faster; of two of the same shape, the higher.
    """
    return float(path[1:].mean())


def compare_speeds(
    build: Build, images: Images, classes: int, config: SpeedConfig, seeds: Sequence[int]
) -> list[SpeedRow]:
    """Accumulated influences in both comparisons, for both kinds of examples, seed by seed."""
    rows: list[SpeedRow] = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randperm(len(images), generator=generator)[: config.examples]
        few = images.take(drawn)
        labels = flip_labels(few.labels, classes, config.noise, generator)
        if labels.wrong.any():
            model = build(tuple(few.pixels.shape[1:]), classes, seed)
            groups = labels.wrong.long()
            influences = _accumulate(model, few.pixels, labels.given, groups, config)
            rows += _rows(influences, ("clean", "noisy"), groups, "clean-noisy", seed, config)
        generator = torch.Generator().manual_seed(seed)
        toy = coherent_and_contradictory(config.examples // 2, generator)
        model = build(tuple(toy.inputs.shape[1:]), toy.classes, seed)
        influences = _accumulate(model, toy.inputs, toy.labels, toy.groups, config)
        rows += _rows(influences, toy.names, toy.groups, "coherent-contradictory", seed, config)
    return rows


def _accumulate(
    model: nn.Module,
    inputs: Float[Tensor, "examples ..."],
    labels: Int[Tensor, " examples"],
    groups: Int[Tensor, " examples"],
    config: SpeedConfig,
) -> Influences:
    return accumulate(
        model, inputs, labels, groups, steps=config.steps, learning_rate=config.learning_rate
    )


def _rows(
    influences: Influences,
    names: Sequence[str],
    groups: Int[Tensor, " examples"],
    contrast: Contrast,
    seed: int,
    config: SpeedConfig,
) -> Iterator[SpeedRow]:
    kept = torch.linspace(0, config.steps, min(config.points, config.steps + 1)).long()
    for place, name in enumerate(names):
        mine = groups == place
        alike = influences.from_groups[..., place][:, mine].mean(1)
        everyone = influences.from_groups[:, mine].sum(-1).mean(1)
        influence = influences.total[:, mine].mean(1)

        def path(values: Tensor) -> tuple[float, ...]:
            return tuple(values[kept].tolist())

        yield SpeedRow(
            contrast=contrast,
            kind=name,
            seed=seed,
            steps=tuple(kept.tolist()),
            influence=path(influence),
            measured=path(influences.measured[:, mine].mean(1)),
            own=path(influences.own[:, mine].mean(1)),
            from_alike=path(alike),
            from_others=path(everyone - alike),
            speed=speed(influence),
        )
