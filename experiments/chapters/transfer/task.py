"""A pretraining task and a task to transfer to, with out-of-distribution test inputs.

The first task has some classes of a data set (digits or topics), the second the others. Texts on
one topic each are generated from vocabularies: fields of life, and topics in each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import functional

from dynolab.errors import ConfigError
from experiments.chapters.classifiers.labels import check_labels
from experiments.chapters.images import ImageSplits


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIELDS: dict[str, tuple[str, ...]] = {
    "sport": _words("team coach score win season player league match training fans record"),
    "kitchen": _words("recipe taste fresh spoon dish salt heat minutes serve bowl hungry"),
    "science": _words("theory measure data sample result model study error test scale paper"),
    "money": _words("price pay account cost bank interest rate contract euro risk offer"),
}
"""Words that all topics of a field share."""

TOPICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "football": ("sport", _words("goal striker penalty corner pitch keeper offside tackle")),
    "tennis": ("sport", _words("racket ace set volley court backhand umpire deuce")),
    "swimming": ("sport", _words("pool lane stroke dive relay goggles butterfly lap")),
    "baking": ("kitchen", _words("flour oven dough yeast crust cake sugar butter")),
    "grilling": ("kitchen", _words("charcoal steak smoke rib marinade flame skewer tongs")),
    "brewing": ("kitchen", _words("hops malt barrel foam ferment bottle lager cellar")),
    "astronomy": ("science", _words("star orbit planet telescope comet galaxy lens dust")),
    "biology": ("science", _words("cell gene protein tissue species enzyme leaf nerve")),
    "chemistry": ("science", _words("acid reaction catalyst bond ion solvent flask powder")),
    "insurance": ("money", _words("claim policy premium damage cover accident insurer loss")),
    "housing": ("money", _words("rent tenant flat deposit landlord lease roof garden")),
    "trading": ("money", _words("share broker market stock index trend dividend ticker")),
}
"""Every topic with its field and its own words, the commonest first."""

COMMON = _words(
    "the a and of to in is was that with for on it as but from they have more this when about "
    "said very then over after some new long"
)
"""Words common to all texts."""

_OWN, _FIELD, _OTHER = 0.15, 0.25, 0.15
"""Shares of a text's words: of its topic, of its field, of any other topic."""


class TopicConfig(BaseModel):
    """Settings of generated texts."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    texts: int = Field(2_400, ge=20, description="Number of texts.")
    words: int = Field(24, ge=1, description="Number of words of a text.")
    vocabulary: int = Field(
        400, ge=2, description="Number of words that are counted, the commonest of all texts."
    )
    seed: int = Field(0, ge=0, description="Seed of the texts.")


def generate(config: TopicConfig) -> tuple[list[list[str]], Int[ndarray, " texts"]]:
    """Generates texts as lists of words, on the topics in turn, and the number of each one's topic.

    A word is one of the topic's own by Zipf's law (15%), one of the topic's field (25%), one of any
    other topic (15%), or a common one: a text shows its field clearly and its topic faintly.
    """
    rng, names = np.random.default_rng(config.seed), tuple(TOPICS)
    labels = np.arange(config.texts) % len(names)
    return [_text(names[label], config.words, rng) for label in labels], labels


def _text(topic: str, length: int, rng: np.random.Generator) -> list[str]:
    field, words = TOPICS[topic]
    others = [name for name in TOPICS if name != topic]
    zipf = 1 / np.arange(1, len(words) + 1)
    zipf /= zipf.sum()
    text = []
    for draw in rng.random(length):
        if draw < _OWN:
            text.append(words[rng.choice(len(words), p=zipf)])
        elif draw < _OWN + _FIELD:
            text.append(_pick(FIELDS[field], rng))
        elif draw < _OWN + _FIELD + _OTHER:
            text.append(_pick(TOPICS[_pick(others, rng)][1], rng))
        else:
            text.append(_pick(COMMON, rng))
    return text


def _pick(words: Sequence[str], rng: np.random.Generator) -> str:
    return words[int(rng.integers(len(words)))]


def vocabulary(texts: Sequence[Sequence[str]], size: int) -> dict[str, int]:
    """The commonest words and their columns; equally common ones in alphabetical order."""
    counts = Counter(word for text in texts for word in text)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {word: place for place, (word, _) in enumerate(ranked[:size])}


def bags(
    texts: Sequence[Sequence[str]], places: dict[str, int]
) -> Float[ndarray, "texts vocabulary"]:
    """Counts of vocabulary words, each text scaled to length one; zero for a text without any."""
    counts = np.zeros((len(texts), len(places)), dtype=np.float32)
    for row, text in enumerate(texts):
        for word in text:
            if word in places:
                counts[row, places[word]] += 1
    sizes = np.linalg.norm(counts, axis=1, keepdims=True)
    return counts / np.where(sizes > 0, sizes, 1)


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
    test_places, train_places = order[: len(order) // 3], order[len(order) // 3 :]
    test_places = test_places[np.isin(topics[test_places], second)]
    places = vocabulary([texts[i] for i in train_places], config.vocabulary)
    shortened = []
    for i in test_places:
        words = texts[i]
        keep = sorted(rng.permutation(len(words))[: max(1, len(words) // 3)])
        shortened.append([words[k] for k in keep])
    others = [int(rng.choice(np.flatnonzero(topics != topics[i]))) for i in test_places]
    mixed = [[*texts[i], *texts[other]] for i, other in zip(test_places, others, strict=True)]
    inputs, test, changed, joined = (
        torch.from_numpy(bags(words, places))
        for words in (
            [texts[i] for i in train_places],
            [texts[i] for i in test_places],
            shortened,
            mixed,
        )
    )
    labels = torch.from_numpy(topics)
    return TransferTask(
        "topics",
        _select_classes(inputs, labels[train_places], first),
        _select_classes(inputs, labels[train_places], second),
        _select_classes(test, labels[test_places], second),
        {"shortened": changed, "mixed": joined},
        len(first),
        len(second),
    )


def _select_classes(
    inputs: Tensor, labels: Int[Tensor, " examples"], classes_chosen: Sequence[int]
) -> Examples:
    """Selects examples of some classes, renumbered from 0 in the order given."""
    place = torch.full((int(labels.max()) + 1,), -1)
    for new, old in enumerate(classes_chosen):
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
