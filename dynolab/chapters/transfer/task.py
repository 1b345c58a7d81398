"""A pretraining task and a task to transfer to, with out-of-distribution test inputs.

The first task has some classes of a data set (digits or topics), the second the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from dynolab.chapters.classifiers.labels import check_labels
from dynolab.chapters.images import ImageSplits
from dynolab.chapters.transfer.topics import TOPICS, TopicConfig, bags, generate, vocabulary
from dynolab.errors import ConfigError


@dataclass(frozen=True)
class Examples:
    """Inputs and their labels, counted from 0 within their task."""

    inputs: Float[Tensor, "examples ..."]
    labels: Int[Tensor, " examples"]


@dataclass(frozen=True)
class TransferTask:
    """The first task's training examples, and the pool from which the second task draws its own.

    `elsewhere`: the second task's test inputs under changes that training inputs never undergo, by
    name of the change.
    """

    name: str
    first: Examples
    pool: Examples
    test: Examples
    elsewhere: dict[str, Float[Tensor, "examples ..."]]
    first_classes: int
    classes: int

    def draw(self, examples: int, seed: int) -> Int[Tensor, " drawn"]:
        """Draws the second task's training examples, as indices into the pool.

        **Raises:** `ConfigError` if the pool has too few, or a class gets none.
        """
        if examples > len(self.pool.labels):
            raise ConfigError(
                "examples",
                examples,
                f"the second task of {self.name} has {len(self.pool.labels)} of them; lower it",
            )
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randperm(len(self.pool.labels), generator=generator)[:examples]
        check_labels(self.pool.labels[drawn], self.classes, "examples")
        return drawn


def check_classes(first: Sequence[int], classes: int, field: str) -> None:
    """**Raises:** `ConfigError` for unknown classes, or fewer than two in either task."""
    unknown = [label for label in first if not 0 <= label < classes]
    if unknown or len(set(first)) < len(first):
        raise ConfigError(field, list(first), f"name classes of 0 … {classes - 1}, each once")
    if not 2 <= len(first) <= classes - 2:
        raise ConfigError(
            field,
            list(first),
            f"of {classes} classes, both tasks need two at least; name 2 to {classes - 2}",
        )


def image_task(data: ImageSplits, first: Sequence[int], seed: int) -> TransferTask:
    """Images of some classes, then of the others; test images also shifted, rotated and noisy.

    **Arguments:** `seed`: seed of the pixel noise.
    """
    check_classes(first, data.classes, "first_digits")
    second = [label for label in range(data.classes) if label not in first]
    test = _select_classes(data.test.pixels, data.test.labels, second)
    return TransferTask(
        "digits",
        _select_classes(data.train.pixels, data.train.labels, first),
        _select_classes(data.train.pixels, data.train.labels, second),
        test,
        {
            "shifted": shifted(test.inputs),
            "rotated": rotated(test.inputs, 25.0),
            "noisy": noisy(test.inputs, 0.3, torch.Generator().manual_seed(seed)),
        },
        len(first),
        len(second),
    )


def topic_task(config: TopicConfig, first: Sequence[int]) -> TransferTask:
    """Texts of some topics as bags of words, then of the others.

    Test texts are also shortened to a third of their words, or each mixed with a text of another
    topic. A third of the texts is held out for testing; the rest determine the vocabulary.
    """
    texts, topics = generate(config)
    check_classes(first, len(TOPICS), "first_topics")
    second = [label for label in range(len(TOPICS)) if label not in first]
    rng = np.random.default_rng(config.seed)
    order = rng.permutation(len(texts))
    held, kept = order[: len(order) // 3], order[len(order) // 3 :]
    held = held[np.isin(topics[held], second)]
    places = vocabulary([texts[i] for i in kept], config.vocabulary)
    shortened, mixed = [], []
    for i in held:
        words = texts[i]
        keep = sorted(rng.permutation(len(words))[: max(1, len(words) // 3)])
        shortened.append([words[k] for k in keep])
    for i in held:
        other = rng.choice(np.flatnonzero(topics != topics[i]))
        mixed.append([*texts[i], *texts[int(other)]])
    inputs, test, changed, joined = (
        torch.from_numpy(bags(words, places))
        for words in ([texts[i] for i in kept], [texts[i] for i in held], shortened, mixed)
    )
    labels = torch.from_numpy(topics)
    return TransferTask(
        "topics",
        _select_classes(inputs, labels[kept], first),
        _select_classes(inputs, labels[kept], second),
        _select_classes(test, labels[held], second),
        {"shortened": changed, "mixed": joined},
        len(first),
        len(second),
    )


def _select_classes(
    inputs: Tensor, labels: Int[Tensor, " examples"], wanted: Sequence[int]
) -> Examples:
    """Selects examples of some classes, renumbered from 0 in the order given."""
    place = torch.full((int(labels.max()) + 1,), -1)
    for new, old in enumerate(wanted):
        if old < len(place):
            place[old] = new
    renamed = place[labels]
    return Examples(inputs[renamed >= 0], renamed[renamed >= 0])


def shifted(pixels: Float[Tensor, "images channels height width"]) -> Tensor:
    """Shifts right by an eighth of the width and down by an eighth of the height, and crops."""
    down, right = (max(1, side // 8) for side in pixels.shape[-2:])
    padded: Tensor = functional.pad(pixels, (right, 0, down, 0))
    return padded[..., : pixels.shape[-2], : pixels.shape[-1]]


def rotated(pixels: Float[Tensor, "images channels height width"], degrees: float) -> Tensor:
    """Rotates about the centre with bilinear interpolation."""
    angle = torch.deg2rad(torch.tensor(degrees))
    turn = torch.stack(
        [
            torch.stack([angle.cos(), -angle.sin(), torch.tensor(0.0)]),
            torch.stack([angle.sin(), angle.cos(), torch.tensor(0.0)]),
        ]
    )
    grid = functional.affine_grid(
        turn.expand(len(pixels), 2, 3), list(pixels.shape), align_corners=False
    )
    return functional.grid_sample(pixels, grid, align_corners=False)


def noisy(
    pixels: Float[Tensor, "images channels height width"],
    deviation: float,
    generator: torch.Generator,
) -> Tensor:
    """Adds Gaussian noise to every pixel, clipped to 0 … 1."""
    return (pixels + deviation * torch.randn(pixels.shape, generator=generator)).clamp(0, 1)
