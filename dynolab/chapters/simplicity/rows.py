"""The rows of the simplicity chapter: mappings from objects to messages, and their learning."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dynolab.results.forces import Measured

MappingKind = Literal["compositional", "holistic", "degenerate"]
Paths = tuple[tuple[float, ...], ...]


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
        """The form shown to people: 2×2."""
        return f"{self.attributes}×{self.values}"


class LearnedMapping(Measured):
    """One mapping and how fast it was learned: `mappings.jsonl`. Tuples hold one number per seed.

    - `messages`: the message of every object, both numbered in base v, first attribute first.
    - `bits`: the coding length of its kind; None for maps that are not bijections.
    - `similarity`: topographic similarity; NaN for a constant map.
    - `area`: mean loss over the steps of training, in nats per object.
    - `start_cooperation`: before training, the mean of `⟨∇ℓ_o, ∇ℓ_u⟩` over letter positions
      and over the pairs o ≠ u that share an attribute, ℓ the loss of the letter at that position;
      `cooperation`: its mean over the steps of training.

    Over all pairs that mean would say little: where every letter is used equally often, the
    forces on the logits add up to zero at the start, so that a kernel that is the same for all
    pairs adds `−a Σ_o ‖G_o‖²`, whatever the mapping.
    """

    space: SpaceName
    messages: tuple[int, ...]
    kind: MappingKind
    distinct: int
    bits: float | None
    similarity: float
    area: tuple[float, ...]
    final: tuple[float, ...]
    start_cooperation: tuple[float, ...]
    cooperation: tuple[float, ...]


class KindPath(Measured):
    """Means over a kind's mappings by step, one path per seed: `paths.jsonl`.

    `losses` in nats per object, one more than steps; `cooperation` as in `LearnedMapping`.
    """

    space: SpaceName
    kind: MappingKind
    losses: Paths
    cooperation: Paths
