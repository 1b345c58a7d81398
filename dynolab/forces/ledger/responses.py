"""The responses of a recorded step: their gradients, and the weights that the objective gave."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.map.costs import memory_for
from dynolab.forces.map.terms import TokenTerms, token_terms
from dynolab.forces.map.weighted import Updating, WeightedResponse, labelled, weighted_of
from dynolab.forces.step.split import step_batches
from dynolab.objectives import Objective, build_objective, read_logps
from dynolab.training.step_record import StepRecord


@dataclass(frozen=True)
class StepResponses:
    """A step's responses: their labels, and ∇_θ of the loss through each, a row of `gradients`.

    The rows add up to the gradient of the loss. `weighted` holds every token with the objective's
    c, that is s = c log π, and `terms`, where they are wanted, its A and G.
    """

    labels: tuple[Updating, ...]
    gradients: Float[Tensor, "responses parameters"]
    weighted: tuple[WeightedResponse, ...]
    terms: tuple[TokenTerms, ...] = ()


def step_responses(
    record: StepRecord,
    gradients: GroupedGradients,
    *,
    batch_tokens: int | None = None,
    with_terms: bool = False,
) -> StepResponses:
    """One forward and one backward of a step's batch, at the weights before it.

    A response's gradient is that of `−Σ_l c_l log π_l`, `c_l = −∂loss/∂log π_l` held constant. All
    are on the host where the device has no room for them.

    **Arguments:** `batch_tokens`: bound of sequences × padded length of one forward; default: the
    policy's.
    """
    objective, policy = build_objective(record.facts.objective), gradients.policy
    labels = labelled(record.examples, objective)
    size = sum(weight.numel() for weight in record.before.values()) * policy.dtype.itemsize
    room = len(labels) * size <= memory_for(policy.home)
    rows = gradients.rows(record.before, len(labels), None if room else torch.device("cpu"))
    counts = (len(example.responses(objective.sides)) for example in record.examples)
    starts = [0, *accumulate(counts)]  # rows of example n: from starts[n] to starts[n + 1]
    weighted: dict[int, WeightedResponse] = {}
    terms: dict[int, TokenTerms] = {}
    tokens = batch_tokens or policy.batch_tokens
    for numbers, batch in step_batches(record.examples, objective, policy, tokens):
        places = list(chain.from_iterable(range(starts[n], starts[n + 1]) for n in numbers))
        # Batches are made by length. Where its rows stand side by side, gradients are added to them
        # in place; else in a tensor of their own, which is copied.
        neighbours = places[-1] - places[0] < len(places)
        batch_rows = rows[places[0] : places[-1] + 1]
        if not neighbours:
            batch_rows = gradients.rows(record.before, len(places), rows.device)
        losses = ResponseLosses(objective, batch, with_terms=with_terms)
        gradients.add(record.before, batch, losses, torch.arange(len(batch_rows)), into=batch_rows)
        if not neighbours:
            rows[places] = batch_rows
        together = [record.examples[number] for number in numbers]
        weighted_here = weighted_of(together, objective, batch, losses.token_weights)
        weighted |= zip(places, weighted_here, strict=True)
        terms |= zip(places, losses.terms, strict=False)  # none where they are not wanted
    ordered = tuple(weighted[place] for place in range(len(labels)))
    return StepResponses(
        tuple(labels), rows, ordered, tuple(terms[place] for place in sorted(terms))
    )


def gradients_of(record: StepRecord, policy: PolicyFunction) -> GroupedGradients:
    """How gradients of many answers are taken at once, tried on the step's first example."""
    objective = build_objective(record.facts.objective)
    sample = [sequence for _, sequence in record.examples[0].responses(objective.sides)]
    return GroupedGradients.build(policy, record.before, sample[:2])


class ResponseLosses:
    """`−Σ_j c_{l,j} log π_{l,j}` of every response token; keeps c, and each response's terms."""

    def __init__(
        self, objective: Objective, batch: TokenBatch, *, with_terms: bool = False
    ) -> None:
        self._objective, self._batch, self._with_terms = objective, batch, with_terms
        self.terms: list[TokenTerms] = []
        self.token_weights = torch.empty(0, 0)

    def __call__(self, logits: Float[Tensor, "tokens vocabulary"]) -> Float[Tensor, " tokens"]:
        """The values, of the logits of every response token."""
        logps = read_logps(self._objective, logits, self._batch)
        weights = self._objective.token_weights(logps.detach(), self._batch)
        self.token_weights = weights.reshape(len(logps), -1)
        if self._with_terms:
            batch = self._batch
            terms = token_terms(
                logits.detach(), batch.targets, weights, temperature=batch.temperature
            )
            self.terms = terms.split(batch.sequence_length.tolist())
        return -(weights * logps).reshape(len(logps), -1).sum(1)
