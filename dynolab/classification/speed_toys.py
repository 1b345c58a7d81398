"""Small data sets in which two kinds of examples differ in one thing alone.

The sources state these comparisons without fixing the data; what is made here is a choice of
this project, each described with its function.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Toy:
    """Examples of `names[groups[i]]`; `attainable` is the most that can be gained, nats each.

    It is the mean log-probability of the labels under their frequencies given the input, less
    `−log K` of a uniform start.
    """

    names: tuple[str, ...]
    inputs: Float[Tensor, "examples dimensions"]
    labels: Int[Tensor, examples]
    groups: Int[Tensor, examples]
    classes: int
    attainable: float


def coherent_and_contradictory(
    pairs: int, generator: torch.Generator, *, classes: int = 10, dimensions: int = 32,
    distance: float = 0.3,
) -> Toy:  # fmt: skip
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
        attainable=float(torch.tensor(float(classes)).log()),
    )


def cause_and_effect(
    samples: int, generator: torch.Generator, *, values: int = 8, effects: int = 4,
    noise: float = 0.1, dimensions: int = 32,
) -> tuple[Toy, Toy]:  # fmt: skip
    """The same samples of two variables, read from the cause and read from the effect.

    The cause is uniform over `values`; the mechanism maps `values / effects` causes each to one
    of `effects` effects, spread over the same alphabet, and gives with probability `noise` any
    other letter. So one cause has one usual effect, while one effect has several causes: read
    backwards, equal inputs carry different labels. Both directions have the same alphabet, the
    same random unit-variance code of its letters as input, and one network.
    """
    cause = torch.arange(samples) % values
    letters = torch.randperm(values, generator=generator)[:effects]
    mechanism = letters[torch.randperm(values, generator=generator) % effects]
    shift = torch.randint(1, values, (samples,), generator=generator)
    noisy = torch.rand(samples, generator=generator) < noise
    effect = torch.where(noisy, (mechanism[cause] + shift) % values, mechanism[cause])
    codes = torch.randn(values, dimensions, generator=generator)
    return (
        _direction("causal", cause, effect, codes),
        _direction("anti-causal", effect, cause, codes),
    )


def _direction(
    name: str, given: Int[Tensor, samples], asked: Int[Tensor, samples],
    codes: Float[Tensor, "values dimensions"],
) -> Toy:  # fmt: skip
    values = len(codes)
    counts = torch.zeros(values, values, dtype=torch.float64)
    counts.index_put_((given, asked), torch.ones(len(given), dtype=torch.float64), accumulate=True)
    share = counts / counts.sum(1, keepdim=True).clamp(min=1)
    best = torch.xlogy(counts, share).sum() / len(given)
    return Toy(
        names=(name,), inputs=codes[given], labels=asked, groups=torch.zeros_like(given),
        classes=values, attainable=float(best + torch.tensor(float(values)).log()),
    )  # fmt: skip
