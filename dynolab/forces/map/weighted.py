"""Responses of a force map, with the score of each token, whose gradient the map is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dynolab.data.batches import CHOSEN, TokenBatch
from dynolab.data.encode import Encoded
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.views import View
from dynolab.forces.function.weights import Weights
from dynolab.forces.ledger.measures import Measure, logit_slopes
from dynolab.forces.step.split import objective_batch, objective_logps, step_totals
from dynolab.objectives import Objective
from dynolab.training.step_record import Recorded


@dataclass(frozen=True)
class WeightedResponse:
    """Token l of a response has the score `s_l = Σ_j w_{l,j} log π_T(t_{l,j} | prefix)`.

    π_T is softmax(z/T). For an observed response s is the token's own log π, or what is measured
    there. For an updating one w is the objective's c, held constant: `∂s_l/∂z_l = −G_l`, so that a
    gradient step through token l moves the weights by `η ∇_θ s_l`, whatever the objective reads and
    at which temperature.
    """

    sequence: Encoded
    targets: Int[Tensor, "tokens targets"]
    weights: Float[Tensor, "tokens targets"]
    temperature: float = 1.0

    @classmethod
    def own(cls, sequence: Encoded, policy: PolicyFunction) -> WeightedResponse:
        """The response with each token's own log π as its score."""
        tokens = torch.tensor(sequence.ids[sequence.prompt_length :], device=policy.device)
        ones = torch.ones(len(tokens), 1, dtype=policy.dtype, device=policy.device)
        return cls(sequence, tokens[:, None], ones)

    @classmethod
    def measured(
        cls, sequence: Encoded, policy: PolicyFunction, at: Weights, measure: Measure
    ) -> WeightedResponse:
        """The response with a measure of each token as its score, up to a constant.

        `∂m/∂z` sums to 0 over the vocabulary, and so is the gradient of
        `Σ_v (∂m/∂z)_v log π_v`, held constant: `∂ log π_v/∂z = e_v − π`.
        """
        batch = policy.batch([sequence])
        with torch.no_grad():
            logits = policy.logits(at, batch, forward_mode=False)
        weights = logit_slopes(measure, logits, batch.token)
        tokens = torch.arange(weights.shape[1], device=policy.device)
        return cls(sequence, tokens.expand(len(weights), -1), weights)

    def span(self, start: int, stop: int) -> WeightedResponse:
        """A span of the tokens; everything before it counts as prompt."""
        ids, prompt = self.sequence.ids, self.sequence.prompt_length
        return replace(
            self,
            sequence=Encoded(ids[: prompt + stop], prompt + start),
            targets=self.targets[start:stop],
            weights=self.weights[start:stop],
        )

    def scores(
        self, policy: PolicyFunction, at: Weights, *, forward_mode: bool = True
    ) -> Float[Tensor, " tokens"]:
        """Every token's s at the given weights, differentiable; `forward_mode` as of `logits`."""
        batch = weighted_batch([self], policy)
        logps = policy.observed(at, batch, View(self.targets), forward_mode=forward_mode)
        return (self.weights * logps).sum(-1)


def weighted_batch(responses: Sequence[WeightedResponse], policy: PolicyFunction) -> TokenBatch:
    """Responses of one temperature as one batch on the policy's device."""
    batch = policy.batch([response.sequence for response in responses])
    return replace(batch, temperature=responses[0].temperature)


def scores_along(
    policy: PolicyFunction,
    at: Weights,
    directions: Iterable[Weights],
    responses: Sequence[WeightedResponse],
) -> Float[Tensor, "directions tokens"]:
    """`∂s/∂θ · d` of every token of responses of one temperature, for each direction d."""
    view = View(torch.cat([response.targets for response in responses]))
    along = policy.change_along(at, directions, weighted_batch(responses, policy), view=view)
    return (torch.cat([response.weights for response in responses]) * along).sum(-1)


@dataclass(frozen=True)
class Updating:
    """One updating response: its example, its side and its tokens."""

    id: str
    side: Literal["chosen", "rejected"]
    tokens: tuple[int, ...]


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
        WeightedResponse(sequence, token_targets, weights, temperature)
        for (sequence, temperature), token_targets, weights in zip(
            sequences, targets, token_weights.split(lengths), strict=True
        )
    ]
