"""What a ledger enters of one step: lines, what else moved the functionals, and what is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.forces.map.terms import SourceMeasures
from dynolab.forces.map.weighted import Updating
from dynolab.results.ledger import PER_STEP


@dataclass(frozen=True)
class TokenLines:
    """A line's tokens: what each did to a functional; they add up to the line.

    `response` and `functional` are row and column of the line.
    """

    response: int
    functional: int
    nats: Float[Tensor, " tokens"]


SIDES = ("chosen", "rejected")

Nats = Float[Tensor, " functionals"]
"""A number of each functional, in nats."""


@dataclass(frozen=True)
class StepAccount:
    """One step's entries, in nats; a column is a functional.

    `lines[i]` belongs to response `responses[i]`: what this step and later ones would have lacked
    without it (`Removal`). `together` is what the gradient did beside the lines, through the clip
    factor and the second moment that the responses share. `before` and `after` are the functionals
    at both ends of the step, `predicted` is ⟨q̄, Δθ⟩ with the step's real Δθ, and `rounding` the
    part of it that the optimizer's formula does not give. `carried_in` is what the momentum that
    the step began with did from here on, `unexplained` what the part of the gradient did that no
    response made. `groups` are lines of several responses at once, by the group's name: what the
    step would have lacked without all of them, which is not the sum of their lines.
    `tokens` are those of some lines, `sources` the papers' measures of single answers; `blocks` the
    sums of the lines of each of `SIDES` through the parameters of a block (`block_of`).
    """

    step: int
    responses: tuple[Updating, ...]
    lines: Float[Tensor, "responses functionals"]
    decay: Nats
    carried_in: Nats
    before: Nats
    after: Nats
    predicted: Nats
    rounding: Nats
    unexplained: Nats
    together: Nats
    groups: Mapping[str, Nats] = field(default_factory=dict)
    tokens: tuple[TokenLines, ...] = ()
    sources: tuple[SourceMeasures, ...] = ()
    blocks: Mapping[str, Float[Tensor, "functionals 2"]] = field(default_factory=dict)

    @property
    def measured(self) -> Nats:
        """The step's change of every functional."""
        return self.after - self.before

    @property
    def residual(self) -> Nats:
        """What the slopes at both ends leave unexplained, measured − predicted."""
        return self.measured - self.predicted

    def parts(self) -> dict[str, Nats]:
        """Sums over the responses of each side, and what else moved the functionals.

        The names are those that logs and tables have: `carried_in` is what `momentum` did, and
        `rounding` is the trainer's `arithmetic`. Groups are no part: their responses have lines.
        """
        sums = {}
        for side in SIDES:
            of_side = [response.side == side for response in self.responses]
            sums[side] = self.lines[of_side].sum(0)
        return {
            **sums,
            "together": self.together,
            "decay": self.decay,
            "momentum": self.carried_in,
            "unexplained": self.unexplained,
            "arithmetic": self.rounding,
            "residual": self.residual,
            "measured": self.measured,
        }


def joined(parts: Sequence[StepAccount]) -> StepAccount:
    """The entries of a step from those of some functionals each."""

    def columns(name: str, dim: int = 0) -> Float[Tensor, "*responses functionals"]:
        return torch.cat([getattr(part, name) for part in parts], dim)

    def by_name(name: str) -> dict[str, Float[Tensor, "functionals ..."]]:
        names = getattr(parts[0], name)  # all parts are of one step, and have the same
        return {key: torch.cat([getattr(part, name)[key] for part in parts]) for key in names}

    by_column: dict[str, Any] = {name: columns(name) for name in PER_STEP}
    return replace(
        parts[0],
        **by_column,
        lines=columns("lines", 1),
        groups=by_name("groups"),
        tokens=tuple(chain.from_iterable(part.tokens for part in parts)),
        sources=tuple(chain.from_iterable(part.sources for part in parts)),
        blocks=by_name("blocks"),
    )
