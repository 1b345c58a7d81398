"""A small data set in which two kinds of examples differ in one thing alone.

The sources state the comparison without fixing the data; what is made here is a choice of this
project.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Toy:
    """Examples of `names[groups[i]]`."""

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
    """Pairs of near-equal inputs: half of the pairs agree in their label, half do not.

    Inputs are Gaussian with unit variance, a pair's second one at `distance` times a unit-variance
    step from its first. Every label is drawn at random, so that neither kind is cleaner: they
    differ in whether neighbours say the same.
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
