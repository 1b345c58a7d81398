"""Mappings from objects to messages: which are compositional, and how long their description is.

An object has m attributes of v values, a message m letters of v kinds; both are numbered in base
v, the most significant digit first. A bijection is compositional if every letter encodes one
attribute (Ren & Sutherland, *Simplicity Bias*, arXiv 2409.09626).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from pydantic import Field

from dynolab.data.rows import Row
from dynolab.errors import ConfigError
from dynolab.statistics import rank_correlation

MappingKind = Literal["compositional", "holistic", "degenerate"]
Messages = tuple[int, ...]
"""The message of every object."""


class SpaceName(Row):
    """A space of objects: m attributes of v values each, and as many messages."""

    attributes: int = Field(ge=1)
    values: int = Field(ge=2)

    @property
    def objects(self) -> int:
        """`v^m`."""
        return int(self.values**self.attributes)

    @property
    def label(self) -> str:
        """The form shown to people: 2×2."""
        return f"{self.attributes}×{self.values}"


def digits(space: SpaceName) -> Int[ndarray, "objects attributes"]:
    """The attributes of every object, and the letters of every message."""
    return np.array(list(product(range(space.values), repeat=space.attributes)))


def one_hot(space: SpaceName, messages: Sequence[int]) -> Float[ndarray, "objects letters"]:
    """Digits of the numbered messages, each as a one-hot block of v, side by side."""
    chosen = digits(space)[np.asarray(messages)]
    return np.eye(space.values, dtype=np.float32)[chosen].reshape(len(chosen), -1)


def sharing_pairs(space: SpaceName) -> Bool[ndarray, "objects objects"]:
    """Which pairs of different objects share an attribute value."""
    objects = digits(space)
    alike = (objects[:, None] == objects).sum(-1)
    return (alike > 0) & (alike < space.attributes)


def all_mappings(space: SpaceName) -> list[Messages]:
    """Every map from objects to messages: (v^m)^(v^m) of them.

    **Raises:** `ConfigError` for spaces of more than four objects, which have too many maps.
    """
    if space.objects > 4:
        raise ConfigError(
            "spaces",
            space.label,
            f"has {space.objects}^{space.objects} maps; give a number of sampled bijections",
        )
    return list(product(range(space.objects), repeat=space.objects))


def composed(space: SpaceName, order: Sequence[int], names: Sequence[Sequence[int]]) -> Messages:
    """The compositional mapping whose i-th letter encodes attribute `order[i]`.

    **Arguments:** `names[i][a]`: the letter at place i for value a.
    """
    objects = digits(space)
    letters = [np.asarray(name)[objects[:, at]] for at, name in zip(order, names, strict=True)]
    places = [space.values**power for power in reversed(range(space.attributes))]
    return tuple((np.stack(letters, 1) @ np.array(places)).tolist())


def compositional_count(space: SpaceName) -> int:
    """`m!(v!)^m`: orders of the attributes times renamings of their values."""
    return math.factorial(space.attributes) * math.factorial(space.values) ** space.attributes


def sampled_bijections(space: SpaceName, count: int, seed: int) -> list[Messages]:
    """Draws `count` compositional and `count` other bijections, without repetition.

    Half of the others are compositional ones with two or more messages permuted, so that all
    degrees of order occur; half are drawn from all bijections.

    **Raises:** `ConfigError` if there are fewer than `count` of either kind.
    """
    compositional = compositional_count(space)
    limit = min(compositional, math.factorial(space.objects) - compositional)
    if not 1 <= count <= limit:
        raise ConfigError(
            "sampled",
            count,
            f"{space.label} objects have {limit} bijections of the rarer kind; choose 1 to {limit}",
        )
    rng = np.random.default_rng(seed)

    def draw() -> Messages:
        names = [rng.permutation(space.values).tolist() for _ in range(space.attributes)]
        return composed(space, rng.permutation(space.attributes).tolist(), names)

    mappings: dict[Messages, None] = {}
    while len(mappings) < count:
        mappings[draw()] = None
    while len(mappings) < 2 * count:
        mapping = rng.permutation(space.objects)
        if len(mappings) % 2:
            mapping = np.array(draw())
            moved = rng.permutation(space.objects)[: rng.integers(2, space.objects + 1)]
            mapping[moved] = mapping[rng.permutation(moved)]
        candidate = tuple(mapping.tolist())
        if kind_of(space, candidate) == "holistic":
            mappings[candidate] = None
    return list(mappings)


def kind_of(space: SpaceName, mapping: Messages) -> MappingKind:
    """Degenerate if two objects share a message, else compositional or holistic."""
    if len(set(mapping)) < len(mapping):
        return "degenerate"
    objects = digits(space)
    for letter in objects[np.asarray(mapping)].T:
        # As many pairs as values: the letter is a function of the attribute.
        pairs = [len({*zip(attribute, letter, strict=True)}) for attribute in objects.T]
        if min(pairs) > space.values:
            return "holistic"
    return "compositional"


def coding_length(space: SpaceName, kind: MappingKind) -> float | None:
    """Bits: `log₂ m! + m log₂ v!` for a compositional one, `log₂ (v^m)!` for other bijections."""
    if kind == "compositional":
        return math.log2(compositional_count(space))
    return math.log2(math.factorial(space.objects)) if kind == "holistic" else None


def topographic_similarity(space: SpaceName, mapping: Messages) -> float:
    """Spearman's ρ between the Hamming distances of objects and of their messages, over all pairs.

    NaN if all messages are equal.
    """
    every = digits(space)
    first, second = np.triu_indices(space.objects, 1)
    messages = every[np.asarray(mapping)]
    apart = (every[first] != every[second]).sum(1)
    return float(rank_correlation(apart, (messages[first] != messages[second]).sum(1)))
