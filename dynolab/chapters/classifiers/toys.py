"""Small generated data sets: Gaussian clouds with known p*, and pairs that agree or contradict.

The sources of the comparison of pairs specify no data; this construction is our choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor


class GaussianConfig(BaseModel):
    """Gaussian clouds; defaults are from Ren, Guo & Sutherland (*Better Supervisory Signals*)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    classes: int = Field(3, ge=2, description="Classes K, one cloud each.")
    dimensions: int = Field(30, ge=1, description="Dimensions of the inputs.")
    variance: float = Field(6.0, gt=0, description="σ² of every cloud in every dimension.")
    examples: int = Field(600, ge=10, description="Training examples.")


@dataclass(frozen=True)
class GaussianToy:
    """Examples with their labels and p*(y | x)."""

    inputs: Float[Tensor, "examples dimensions"]
    labels: Int[Tensor, " examples"]
    truth: Float[Tensor, "examples classes"]


def gaussian_toy(config: GaussianConfig, seed: int) -> GaussianToy:
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
    return GaussianToy(inputs, labels, (-squares / (2 * config.variance)).softmax(-1))


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
