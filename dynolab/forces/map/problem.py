"""A force map's question, checked: which responses are pushed, by which, in which parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from dynolab.data.batches import CHOSEN
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces.function.checks import check_arithmetic, check_response
from dynolab.forces.function.logit_function import Weights
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import subspace
from dynolab.forces.map.gram import Kernel
from dynolab.forces.map.weighted import WeightedResponse
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.forces.step.split import objective_batch, objective_logps, step_totals
from dynolab.objectives import Objective
from dynolab.training.step_record import Recorded

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
    """`F = η ⟨∇ s_m, P ∇ s_l⟩`: the kernel, both sides' responses, and the factor η.

    An observed token's s is its own log π, an updating one's has the objective's c for weights.
    `labels` names the updating responses. η is one where the metric P has it already.
    """

    kernel: Kernel
    observed: list[WeightedResponse]
    updating: list[WeightedResponse]
    labels: list[Updating]
    rate: float

    @property
    def columns(self) -> int:
        """Updating tokens."""
        return sum(len(one.weights) for one in self.updating)


def pose(
    policy: PolicyFunction,
    observed: Sequence[Encoded],
    updating: Sequence[Recorded],
    objective: Objective,
    *,
    update: float | FrozenUpdate,
    at: Weights | None,
    observed_temperature: float,
) -> Problem:
    """Checks a force map's arguments (`force_map`) and scores its updating responses."""
    check_arithmetic(policy.dtype, "products of gradients of 8 significant bits have no sign")
    if not observed or not updating:
        empty = "updating" if observed else "observed"
        raise ConfigError(empty, [], "give at least one response")
    trained = [(one.id, *pushed) for one in updating for pushed in one.responses(objective.sides)]
    plain = [sequence for *_, sequence in trained]
    for what, responses in (("observed", observed), ("updating", plain)):
        for number, response in enumerate(responses):
            check_response(f"{what}[{number}]", response, policy.causal)
    if isinstance(update, FrozenUpdate):
        wanted, scale, rate = set(update.scale), update.scale, 1.0
    else:
        wanted, scale, rate = subspace(policy), None, update
    first = observed[0]
    sample = Encoded(first.ids[: first.prompt_length + SAMPLE_TOKENS], first.prompt_length)
    kernel = Kernel.build(policy, at, wanted, scale, sample)
    return Problem(
        kernel=kernel,
        observed=[WeightedResponse.own(one, policy, observed_temperature) for one in observed],
        updating=_weighted(kernel, updating, objective),
        labels=[
            Updating(name, "chosen" if side == CHOSEN else "rejected", _response(sequence))
            for name, side, sequence in trained
        ],
        rate=rate,
    )


@torch.no_grad()
def _weighted(
    kernel: Kernel, updating: Sequence[Recorded], objective: Objective
) -> list[WeightedResponse]:
    """The updating responses, every token with the objective's c, one example at a time."""
    totals = step_totals(updating, objective)
    weighted = []
    for one in updating:
        batch = objective_batch([one], objective, totals, kernel.policy)
        logps = objective_logps(kernel.policy, kernel.at, batch, objective)
        token_weights = objective.token_weights(logps, batch).reshape(len(logps), -1)
        sequences = [sequence for _, sequence in one.responses(objective.sides)]
        lengths = [sequence.response_length for sequence in sequences]
        # A batch may list likelier tokens that a loss does not read: it has no weights for them.
        targets = batch.targets[:, : token_weights.shape[1]]
        weighted += [
            WeightedResponse(sequence, own, weights, one.temperature)
            for sequence, own, weights in zip(
                sequences, targets.split(lengths), token_weights.split(lengths), strict=True
            )
        ]
    return weighted


def _response(sequence: Encoded) -> tuple[int, ...]:
    return sequence.ids[sequence.prompt_length :]
