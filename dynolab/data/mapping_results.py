"""The rows of the simplicity chapter: mappings from objects to messages, and their learning."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dynolab.data.force_results import Measured

MappingKind = Literal["compositional", "holistic", "degenerate"]


class SpaceName(Measured):
    """A space of objects: m attributes of v values each, and as many messages."""

    attributes: int = Field(ge=1)
    values: int = Field(ge=2)

    @property
    def objects(self) -> int:
        """`v^m`."""
        return int(self.values**self.attributes)

    @property
    def label(self) -> str:
        """As people write it: 2×2."""
        return f"{self.attributes}×{self.values}"


class LearnedMapping(Measured):
    """One mapping and how fast it was learned: `mappings.jsonl`. Tuples hold one number a seed.

    - `messages`: the message of every object, both numbered in base v, first attribute first.
    - `bits`: the coding length of its kind; none for maps that are no bijections.
    - `similarity`: topographic similarity; not a number for a constant map.
    - `area`: mean loss over the steps of training, in nats per object.
    - `start_influence`: mean over pairs o ≠ u of `⟨∇ℓ_o, ∇ℓ_u⟩` before training.
    - `own`, `others`: how far an object's loss was lowered, in nats and to first order, by its own
      share of the updates and by those of all other objects, over the whole training.
    """

    space: SpaceName
    messages: tuple[int, ...]
    kind: MappingKind
    distinct: int
    bits: float | None
    similarity: float
    area: tuple[float, ...]
    final: tuple[float, ...]
    start_influence: tuple[float, ...]
    own: tuple[float, ...]
    others: tuple[float, ...]


class LossPath(Measured):
    """Mean loss of a kind's mappings by step, nats per object, a path a seed: `paths.jsonl`."""

    space: SpaceName
    kind: MappingKind
    losses: tuple[tuple[float, ...], ...]
