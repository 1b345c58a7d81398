"""A force map's question, checked: which responses are pushed, by which, in which parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import CHOSEN
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces.checks import check_arithmetic, check_one_token, check_response
from dynolab.forces.gram import Kernel
from dynolab.forces.optimizers import FrozenUpdate
from dynolab.forces.policy import PolicyFunction, Weights
from dynolab.forces.rules import subspace
from dynolab.forces.split import objective_batch, step_totals
from dynolab.objectives import Objective
from dynolab.training.record import Recorded

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
    policy: PolicyFunction, observed: Sequence[Encoded], updating: Sequence[Recorded],
    objective: Objective, *, update: float | FrozenUpdate, at: Weights | None,
) -> Problem:  # fmt: skip
    """Checks a force map's arguments (`force_map`) and scores its updating responses."""
    check_arithmetic(policy, "products of gradients of 8 significant bits have no sign")
    if not observed or not updating:
        empty = "updating" if observed else "observed"
        raise ConfigError(empty, [], "give at least one response")
    check_one_token(objective, [one.temperature for one in updating])
    trained = [(one.id, *pushed) for one in updating for pushed in one.responses(objective.sides)]
    plain = [sequence for *_, sequence in trained]
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
            Updating(name, "chosen" if side == CHOSEN else "rejected", _response(sequence))
            for name, side, sequence in trained
        ],
        sequences=plain,
        rates=rate * rates,
    )


@torch.no_grad()
def _learning_rates(
    kernel: Kernel, updating: Sequence[Recorded], objective: Objective
) -> Float[Tensor, updating]:
    """c_l of every updating token, one example at a time."""
    totals = step_totals(updating, objective)
    rates = []
    for one in updating:
        batch = objective_batch([one], objective, totals, kernel.policy)
        rates.append(objective.learning_rates(kernel.policy.logps(kernel.at, batch), batch))
    return torch.cat(rates)


def _response(sequence: Encoded) -> tuple[int, ...]:
    return sequence.ids[sequence.prompt_length :]
