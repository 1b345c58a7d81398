"""Which of two kinds of examples is learned faster: clean or noisy, coherent or contradictory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from dynolab.chapters.classifiers.label_noise import flip_labels
from dynolab.chapters.supervision.learning_speed import Influences, accumulate, speed
from dynolab.chapters.supervision.speed_toys import Toy, coherent_and_contradictory
from dynolab.chapters.transfer.adaptation import AdaptationConfig
from dynolab.data.images.images import Images
from dynolab.results.supervision import Contrast, SpeedRow

Build = Callable[[tuple[int, ...], int, int], nn.Module]
"""A network by the shape of an input, the number of classes, and the seed of its weights."""


class SpeedConfig(BaseModel):
    """Full-batch trainings whose every step is accounted for."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    examples: int = Field(120, ge=4, description="Of every comparison.")
    noise: float = Field(0.4, ge=0, lt=1, description="Wrong labels of the images.")
    steps: int = Field(200, ge=1, description="Steps of gradient descent.")
    learning_rate: float = Field(
        0.1, gt=0, description="Of a step on the mean loss; small enough for the first order."
    )
    points: int = Field(50, ge=2, description="Steps that are kept for the figure.")
    adaptation: AdaptationConfig = AdaptationConfig()


def compare_speeds(
    build: Build, images: Images, classes: int, config: SpeedConfig, seeds: Sequence[int]
) -> list[SpeedRow]:
    """Accumulated influences of the two comparisons, two kinds each, seed by seed."""
    rows: list[SpeedRow] = []
    for seed in seeds:
        rows += _images(build, images, classes, config, seed)
        generator = torch.Generator().manual_seed(seed)
        toy = coherent_and_contradictory(config.examples // 2, generator)
        rows += _toy(build, toy, "coherent-contradictory", config, seed)
    return rows


def _images(
    build: Build, images: Images, classes: int, config: SpeedConfig, seed: int
) -> Iterator[SpeedRow]:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(len(images), generator=generator)[: config.examples]
    few = images.take(drawn)
    labels = flip_labels(few.labels, classes, config.noise, generator)
    inputs = few.pixels
    if not labels.wrong.any():
        return iter(())
    groups = labels.wrong.long()
    found = _trained(build, inputs, labels.given, groups, classes, config, seed)
    return _rows(found, ("clean", "noisy"), groups, "clean-noisy", seed, config)


def _toy(
    build: Build, toy: Toy, contrast: Contrast, config: SpeedConfig, seed: int
) -> Iterator[SpeedRow]:
    found = _trained(build, toy.inputs, toy.labels, toy.groups, toy.classes, config, seed)
    return _rows(found, toy.names, toy.groups, contrast, seed, config)


def _trained(
    build: Build,
    inputs: Float[Tensor, "examples ..."],
    labels: Int[Tensor, " examples"],
    groups: Int[Tensor, " examples"],
    classes: int,
    config: SpeedConfig,
    seed: int,
) -> Influences:
    model = build(tuple(inputs.shape[1:]), classes, seed)
    return accumulate(
        model, inputs, labels, groups, steps=config.steps, learning_rate=config.learning_rate
    )


def _rows(
    found: Influences,
    names: Sequence[str],
    groups: Int[Tensor, " examples"],
    contrast: Contrast,
    seed: int,
    config: SpeedConfig,
) -> Iterator[SpeedRow]:
    kept = torch.linspace(0, config.steps, min(config.points, config.steps + 1)).long()
    for place, name in enumerate(names):
        mine = groups == place
        alike = found.from_groups[..., place][:, mine].mean(1)
        everyone = found.from_groups[:, mine].sum(-1).mean(1)
        influence = found.total[:, mine].mean(1)

        def path(values: Tensor) -> tuple[float, ...]:
            return tuple(values[kept].tolist())

        yield SpeedRow(
            contrast=contrast,
            kind=name,
            seed=seed,
            steps=tuple(kept.tolist()),
            influence=path(influence),
            measured=path(found.measured[:, mine].mean(1)),
            own=path(found.own[:, mine].mean(1)),
            from_alike=path(alike),
            from_others=path(everyone - alike),
            speed=speed(influence),
        )
