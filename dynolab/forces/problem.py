"""A force map's question, checked: which responses are pushed, by which, in which parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import CHOSEN, count_totals
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces.checks import check_arithmetic, check_response
from dynolab.forces.gram import Kernel
from dynolab.forces.optimizers import FrozenUpdate
from dynolab.forces.policy import PolicyFunction, Weights
from dynolab.forces.rules import subspace
from dynolab.forces.split import objective_batch
from dynolab.objectives import Objective
from dynolab.training.record import RecordedExample

SAMPLE_TOKENS = 4
"""Response tokens on which the parameters' rules are tried: each has its own random weight."""


@dataclass(frozen=True)
class Updating:
    """One updating response: its example, its side and its tokens."""

    id: str
    side: Literal["chosen", "rejected"]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """`F = gram · rates`: the kernel, both sides' sequences, and η c_l of every updating token."""

    kernel: Kernel
    observed: list[Encoded]
    updating: list[Updating]
    sequences: list[Encoded]
    rates: Float[Tensor, updating]


def pose(
    policy: PolicyFunction, observed: Sequence[Encoded], updating: Sequence[RecordedExample],
    objective: Objective, *, update: float | FrozenUpdate, at: Weights | None,
) -> Problem:  # fmt: skip
    """Checks a force map's arguments (`force_map`) and scores its updating responses."""
    check_arithmetic(policy, "products of gradients of 8 significant bits have no sign")
    if not observed or not updating:
        empty = "updating" if observed else "observed"
        raise ConfigError(empty, [], "give at least one response")
    sides = [(one, side) for one in updating for side in objective.sides]
    plain = [_side(one, side) for one, side in sides]
    for what, responses in (("observed", observed), ("updating", plain)):
        for number, one in enumerate(responses):
            check_response(f"{what}[{number}]", one, policy)
    if isinstance(update, FrozenUpdate):
        wanted, scale, rate = set(update.scale), update.scale, 1.0
    else:
        wanted, scale, rate = subspace(policy), None, update
    first = observed[0]
    sample = Encoded(first.ids[: first.prompt_length + SAMPLE_TOKENS], first.prompt_length)
    kernel = Kernel.build(policy, at, wanted, scale, sample)
    rates = _learning_rates(kernel, updating, objective)
    return Problem(
        kernel=kernel,
        observed=list(observed),
        updating=[
            Updating(one.id, "chosen" if side == CHOSEN else "rejected", _response(sequence))
            for (one, side), sequence in zip(sides, plain, strict=True)
        ],
        sequences=plain,
        rates=rate * rates,
    )


@torch.no_grad()
def _learning_rates(
    kernel: Kernel, updating: Sequence[RecordedExample], objective: Objective
) -> Float[Tensor, updating]:
    """c_l of every updating token, one example at a time."""
    totals = count_totals([one.encoded() for one in updating], objective.sides)
    rates = []
    for one in updating:
        batch = objective_batch([one], objective, totals, kernel.policy)
        rates.append(objective.learning_rates(kernel.policy.logps(kernel.at, batch), batch))
    return torch.cat(rates)


def _side(example: RecordedExample, side: int) -> Encoded:
    sequence = example.chosen if side == CHOSEN else example.rejected
    if sequence is None:
        raise ConfigError(
            f"updating example {example.id}", None, "its objective needs a rejected response"
        )
    return sequence


def _response(sequence: Encoded) -> tuple[int, ...]:
    return sequence.ids[sequence.prompt_length :]
