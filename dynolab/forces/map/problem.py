"""Checks the arguments of a force map, and gathers the responses and gradients that it needs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import CHOSEN, TokenBatch
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces.function.checks import check_arithmetic, check_items
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import subspace
from dynolab.forces.function.weights import Weights
from dynolab.forces.map.gram import TokenGradients
from dynolab.forces.map.weighted import WeightedResponse
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.forces.step.split import objective_batch, objective_logps, step_totals
from dynolab.objectives import Objective
from dynolab.training.step_record import Recorded

SAMPLE_TOKENS = 4
"""Response tokens on which the parameters' rules are checked: each has its own random weight."""


@dataclass(frozen=True)
class Updating:
    """One updating response: its example, its side and its tokens."""

    id: str
    side: Literal["chosen", "rejected"]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """`F = η ⟨∇ s_m, P ∇ s_l⟩`: the gradients, both sides' responses, and the factor η.

    An observed token's s is its own log π; an updating one's has the objective's c for weights.
    `labels` names the updating responses. `rate` is η, or 1 if the metric P includes η.
    """

    gradients: TokenGradients
    observed: list[WeightedResponse]
    updating: list[WeightedResponse]
    labels: list[Updating]
    rate: float

    @property
    def columns(self) -> int:
        """The number of updating tokens."""
        return sum(len(response.weights) for response in self.updating)


def pose(
    policy: PolicyFunction,
    observed: Sequence[Encoded],
    updating: Sequence[Recorded],
    objective: Objective,
    *,
    update: float | FrozenUpdate,
    at: Weights | None,
    parameters: Collection[str] | None = None,
) -> Problem:
    """Checks a force map's arguments (`force_map`) and scores its updating responses."""
    check_arithmetic(policy.dtype, "products of gradients of 8 significant bits have no sign")
    sequences = [
        sequence for example in updating for _, sequence in example.responses(objective.sides)
    ]
    check_items(policy.causal, observed=observed, updating=sequences)
    if isinstance(update, FrozenUpdate):
        wanted, scale, rate = set(update.scale), update.scale, 1.0
    else:
        wanted, scale, rate = subspace(policy), None, update
    if parameters is not None:
        wanted &= set(parameters)
        if not wanted:
            raise ConfigError("parameters", sorted(parameters), "none of them is trained")
        scale = None if scale is None else {name: scale[name] for name in wanted}
    first = observed[0]
    sample = Encoded(first.ids[: first.prompt_length + SAMPLE_TOKENS], first.prompt_length)
    gradients = TokenGradients.build(policy, at, wanted, scale, sample)
    return Problem(
        gradients=gradients,
        observed=[WeightedResponse.own(sequence, policy) for sequence in observed],
        updating=weighted_responses(policy, gradients.at, updating, objective),
        labels=labelled(updating, objective),
        rate=rate,
    )


def labelled(updating: Sequence[Recorded], objective: Objective) -> list[Updating]:
    """The responses that an objective trains on, example after example."""
    return [
        Updating(
            example.id,
            "chosen" if side == CHOSEN else "rejected",
            sequence.ids[sequence.prompt_length :],
        )
        for example in updating
        for side, sequence in example.responses(objective.sides)
    ]


@torch.no_grad()
def weighted_responses(
    policy: PolicyFunction, at: Weights, updating: Sequence[Recorded], objective: Objective
) -> list[WeightedResponse]:
    """The updating responses, every token with the objective's c, one example at a time."""
    totals = step_totals(updating, objective)
    weighted = []
    for example in updating:
        batch = objective_batch([example], objective, totals, policy)
        logps = objective_logps(policy, at, batch, objective)
        token_weights = objective.token_weights(logps, batch).reshape(len(logps), -1)
        weighted += weighted_of([example], objective, batch, token_weights)
    return weighted


def weighted_of(
    examples: Sequence[Recorded],
    objective: Objective,
    batch: TokenBatch,
    token_weights: Float[Tensor, "tokens targets"],
) -> list[WeightedResponse]:
    """The responses of a batch of examples, every token with its weights."""
    sequences = [
        (sequence, example.temperature)
        for example in examples
        for _, sequence in example.responses(objective.sides)
    ]
    lengths = [sequence.response_length for sequence, _ in sequences]
    # A batch may list likelier tokens that the loss does not read; they have no weights.
    targets = batch.targets[:, : token_weights.shape[1]].split(lengths)
    return [
        WeightedResponse(sequence, own, weights, temperature)
        for (sequence, temperature), own, weights in zip(
            sequences, targets, token_weights.split(lengths), strict=True
        )
    ]
