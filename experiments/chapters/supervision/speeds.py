"""How fast kinds of examples are learned: clean or noisy, coherent or contradictory.

Speed is the measured change; the influence that training accumulates explains it where first
order holds.

One step of full-batch gradient descent on the mean loss moves `log p(y_o | x_o)` by

    Δ_o = η/N Σ_u ⟨∇ log p_o, ∇ log p_u⟩ + O(η²),

a sum over the updating examples u: the product A·K·G with the label's row of A and the force
G_u = p − e_y. Its sum over the steps is the *accumulated influence*, which splits into the
influence of an example on itself and of each group of other examples on it.

Table `speeds`: one row for each `contrast` (`clean-noisy` or `coherent-contradictory`), kind of
example and seed, in nats of log p of the given label, means over the examples of that kind.
`influence[t]` is accumulated to first order up to step `steps[t]`, `measured[t]` the change itself;
`influence` = `own` + `from_alike` + `from_others`: by the example itself, by other examples of its
kind, and by those of the other kind. `alone[t]` is the change of a training, from the same weights
and with the same step per example, that leaves the other kind out. `speed` is the mean of the
measured change over all steps, `first_order` that of the influence. The data of the second
contrast are our choice: its sources specify none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from experiments.chapters.classifiers.forces import label_forces
from experiments.chapters.classifiers.labels import flip_labels, one_hot
from experiments.chapters.classifiers.many import Build, ManyModels, SGDConfig, train_many
from experiments.chapters.images import Images
from experiments.chapters.supervision.adaptation import AdaptationConfig


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

    **Arguments:** `groups`: group of every example, 0 or 1.
    """
    many, rows = ManyModels([model]), torch.arange(len(labels))
    targets = one_hot(labels, many.logits(inputs[:1]).shape[-1]).to(inputs)
    members = one_hot(groups, 2).to(inputs)
    measured: list[Tensor] = []
    speeds, others = [torch.zeros(len(labels)).to(inputs)], [torch.zeros_like(members)]
    descent = SGDConfig(learning_rate=learning_rate, batch_size=len(labels))
    for step in train_many(many, inputs, targets, rows.expand(steps, -1), descent):
        measured.append(step.logits[0].log_softmax(-1)[rows, labels])
        now = many.model(0, step.before)
        influence = label_forces(now, inputs, labels, inputs, targets, learning_rate) / len(labels)
        self_influence = influence.diagonal()
        speeds.append(speeds[-1] + self_influence)
        others.append(others[-1] + influence @ members - self_influence[:, None] * members)
    with torch.no_grad():
        measured.append(many.logits(inputs)[0].log_softmax(-1)[rows, labels])
    paths = torch.stack(measured)
    return Influences(paths - paths[0], torch.stack(speeds), torch.stack(others))


def train_alone(
    model: nn.Module, toy: Toy, group: int, *, steps: int, learning_rate: float
) -> Float[Tensor, " steps"]:
    """Mean change of `log p(y_o | x_o)` up to each step, if one group trains by itself.

    Each moves the weights by as much as among all: the rate is scaled by the group's share.
    """
    few = toy.groups == group
    inputs, labels, many = toy.inputs[few], toy.labels[few], ManyModels([model])
    rows, targets = torch.arange(len(labels)), one_hot(labels, toy.classes).to(inputs)
    rate = learning_rate * len(labels) / len(few)
    descent = SGDConfig(learning_rate=rate, batch_size=len(labels))
    trained = train_many(many, inputs, targets, rows.expand(steps, -1), descent)
    logits = [step.logits[0] for step in trained] + [many.logits(inputs)[0]]
    logp = torch.stack(logits).log_softmax(-1)[:, rows, labels].mean(1).detach()
    return logp - logp[0]


def compare_speeds(
    build: Build, images: Images, classes: int, config: SpeedConfig, seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """Accumulated influences in both comparisons, for both kinds of examples, seed by seed."""
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        few = images.take(torch.randperm(len(images), generator=generator)[: config.examples])
        labels = flip_labels(few.labels, classes, config.noise, generator)
        toys = {
            "clean-noisy": Toy(
                ("clean", "noisy"), few.pixels, labels.given, labels.wrong.long(), classes
            ),
            "coherent-contradictory": coherent_and_contradictory(
                config.examples // 2, torch.Generator().manual_seed(seed)
            ),
        }
        for contrast, toy in toys.items():
            if toy.groups.any():
                model = build(tuple(toy.inputs.shape[1:]), toy.classes, seed)
                influences = accumulate(
                    model,
                    toy.inputs,
                    toy.labels,
                    toy.groups,
                    steps=config.steps,
                    learning_rate=config.learning_rate,
                )
                run = {"contrast": contrast, "seed": seed}
                alone = [
                    train_alone(
                        model, toy, group, steps=config.steps, learning_rate=config.learning_rate
                    )
                    for group in (0, 1)
                ]
                rows += [run | row for row in _rows(influences, alone, toy, config)]
    return rows


def _rows(
    influences: Influences, alone: Sequence[Tensor], toy: Toy, config: SpeedConfig
) -> Iterator[dict[str, Any]]:
    recorded = torch.linspace(0, config.steps, min(config.points, config.steps + 1)).long()
    for place, name in enumerate(toy.names):
        mine = toy.groups == place
        alike = influences.from_groups[..., place][:, mine].mean(1)
        everyone = influences.from_groups[:, mine].sum(-1).mean(1)
        influence = influences.total[:, mine].mean(1)
        paths = {
            "influence": influence,
            "measured": influences.measured[:, mine].mean(1),
            "alone": alone[place],
            "own": influences.own[:, mine].mean(1),
            "from_alike": alike,
            "from_others": everyone - alike,
        }
        yield {
            "kind": name,
            "steps": recorded.tolist(),
            **{name: path[recorded].tolist() for name, path in paths.items()},
            "speed": float(paths["measured"][1:].mean()),
            "first_order": float(influence[1:].mean()),
        }


@dataclass(frozen=True)
class Toy:
    """Labelled examples; example i belongs to the group `names[groups[i]]`."""

    names: tuple[str, ...]
    inputs: Float[Tensor, "examples dimensions"]
    labels: Int[Tensor, " examples"]
    groups: Int[Tensor, " examples"]
    classes: int


def coherent_and_contradictory(
    pairs: int,
    generator: torch.Generator,
    *,
    classes: int = 10,
    dimensions: int = 32,
    distance: float = 0.3,
) -> Toy:
    """Pairs of nearly equal inputs: half of the pairs agree in their label, half do not.

    Inputs are Gaussian with unit variance; a pair's second input is its first plus `distance`
    times a unit-variance step. Every label is drawn at random, so neither kind is cleaner: they
    differ only in whether neighbours have the same label.
    """
    first = torch.randn(pairs, dimensions, generator=generator)
    second = first + distance * torch.randn(pairs, dimensions, generator=generator)
    label = torch.randint(classes, (pairs,), generator=generator)
    shift = torch.randint(1, classes, (pairs,), generator=generator)
    contradictory = (torch.arange(pairs) % 2).long()
    other = torch.where(contradictory.bool(), (label + shift) % classes, label)
    return Toy(
        names=("coherent", "contradictory"),
        inputs=torch.cat([first, second]),
        labels=torch.cat([label, other]),
        groups=contradictory.repeat(2),
        classes=classes,
    )
