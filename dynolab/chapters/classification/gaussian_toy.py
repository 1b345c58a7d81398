"""A toy whose truth is known: Gaussian clouds, with the exact probability of every class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor


class GaussianConfig(BaseModel):
    """The clouds; defaults are those of Ren, Guo & Sutherland (*Better Supervisory Signals*)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    classes: int = Field(3, ge=2, description="K, one cloud each.")
    dimensions: int = Field(30, ge=1, description="Of the inputs.")
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

    `p*(k | x) ∝ exp(−‖x − μ_k‖²/2σ²)`: the labels are draws from it, so the hard examples'
    labels are often not the likeliest class.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randint(-1, 2, (config.classes, config.dimensions), generator=generator).float()
    labels = torch.randint(config.classes, (config.examples,), generator=generator)
    noise = torch.randn(config.examples, config.dimensions, generator=generator)
    inputs = centres[labels] + config.variance**0.5 * noise
    squares = (inputs[:, None] - centres).square().sum(-1)
    return GaussianToy(inputs, labels, (-squares / (2 * config.variance)).softmax(-1))
