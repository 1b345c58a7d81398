"""The responses of a recorded step: their gradients, and the weights that the objective gave."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.map.problem import Updating, labelled, weighted_of
from dynolab.forces.map.weighted import WeightedResponse
from dynolab.forces.step.split import step_batches
from dynolab.objectives import Objective, build_objective, read_logps
from dynolab.training.step_record import StepRecord


@dataclass(frozen=True)
class StepResponses:
    """A step's responses, entry by entry: what they are, ∇_θ of the loss through each, and s.

    The gradients add up to that of the loss. `weighted` holds every token with the objective's c.
    """

    labels: tuple[Updating, ...]
    gradients: Float[Tensor, "responses parameters"]
    weighted: tuple[WeightedResponse, ...]


def step_responses(
    record: StepRecord, gradients: GroupedGradients, *, batch_tokens: int = 16_384
) -> StepResponses:
    """One forward and one backward of a step's batch, at the weights before it.

    A response's gradient is that of `−Σ_l c_l log π_l`, `c_l = −∂loss/∂log π_l` held constant.
    """
    objective = build_objective(record.facts.objective)
    labels = labelled(record.examples, objective)
    rows = gradients.rows(record.before, len(labels))
    weighted: list[WeightedResponse] = []
    batches = step_batches(record.examples, objective, gradients.policy, batch_tokens)
    for numbers, batch in batches:
        losses = _Losses(objective, batch)
        own = rows[len(weighted) : len(weighted) + len(batch.side)]
        gradients.add(record.before, batch, losses, torch.arange(len(own)), into=own)
        examples = [record.examples[number] for number in numbers]
        weighted += weighted_of(examples, objective, batch, losses.token_weights)
    return StepResponses(tuple(labels), rows, tuple(weighted))


class _Losses:
    """`−Σ_j c_{l,j} log π_{l,j}` of every response token; keeps c."""

    def __init__(self, objective: Objective, batch: TokenBatch) -> None:
        self._objective, self._batch = objective, batch
        self.token_weights = torch.empty(0, 0)

    def __call__(self, logits: Float[Tensor, "tokens vocabulary"]) -> Float[Tensor, " tokens"]:
        logps = read_logps(self._objective, logits, self._batch)
        weights = self._objective.token_weights(logps.detach(), self._batch)
        self.token_weights = weights.reshape(len(logps), -1)
        return -(weights * logps).reshape(len(logps), -1).sum(1)
