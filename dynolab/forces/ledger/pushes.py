"""What each example of a recorded step did to some answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch
from dynolab.data.encode import Encoded
from dynolab.forces.function.weights import Weights, block_columns, flatten
from dynolab.forces.ledger.functional import Functional, slopes_of
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.ledger.recorded_map import Change, RecordedMap
from dynolab.forces.ledger.responses import ResponseLosses
from dynolab.forces.ledger.step_account import StepMade
from dynolab.forces.map.costs import memory_for
from dynolab.forces.step.one_step import midpoint
from dynolab.forces.step.split import micro_batches, objective_batch, step_totals
from dynolab.objectives import Objective, build_objective
from dynolab.training.step_record import StepRecord


def example_pushes(
    record: StepRecord,
    gradients: GroupedGradients,
    gradient: Weights,
    observed: Sequence[Encoded],
    *,
    batch_tokens: int | None = None,
) -> Float[Tensor, "observed examples"]:
    """What observed responses would lack of a recorded step without each of its examples.

    `⟨∇log π, u(g) − u(g − g_e)⟩` (`Removal`): one backward pass of every observed response, at the
    midpoint of the step, and one of the batch at the weights before it, of as many examples at a
    time as memory has room for.

    **Arguments:**

    - `gradient`: the step's, before clipping (`split_step`).
    - `batch_tokens`: bound of sequences × padded length of one forward; default: the policy's.

    **Returns:** nats, in float64, in the order of `record.examples`.
    """
    policy, objective = gradients.policy, build_objective(record.facts.objective)
    pushes = _Pushes.of(record, gradients, gradient, observed)
    lines = torch.zeros(len(observed), len(record.examples), dtype=torch.float64)
    at_once = max(1, memory_for(policy.home) // pushes.slopes[0].nbytes)
    for batch in micro_batches(
        record.examples, objective.sides, batch_tokens or policy.batch_tokens
    ):  # a batch is its examples' numbers
        for start in range(0, len(batch), at_once):
            numbers = batch[start : start + at_once]
            lines[:, numbers] = pushes.lines(pushes.by_example(numbers))
    return lines


def side_pushes(
    record: StepRecord,
    gradients: GroupedGradients,
    gradient: Weights,
    observed: Sequence[Encoded],
    example: int,
) -> Float[Tensor, "observed 2"]:
    """The same without all chosen, and without all rejected responses of one example, by its place.

    Of a group these are the completions that were pushed up and down.
    """
    pushes = _Pushes.of(record, gradients, gradient, observed)
    return pushes.lines(pushes.by_side(example))


@dataclass(frozen=True)
class _Pushes:
    """Lines of parts of a recorded step's gradient on observed responses, in that step alone."""

    record: StepRecord
    gradients: GroupedGradients
    objective: Objective
    map: RecordedMap
    slopes: Float[Tensor, "observed parameters"]

    @classmethod
    def of(
        cls,
        record: StepRecord,
        gradients: GroupedGradients,
        gradient: Weights,
        observed: Sequence[Encoded],
    ) -> _Pushes:
        flat_gradient = flatten({name: gradient[name] for name in record.before})
        place = midpoint(record.before, record.after)
        slopes = [
            slopes_of([Functional.mean("", [answer])], gradients, place).gradients.cpu()
            for answer in observed
        ]
        return cls(
            record,
            gradients,
            build_objective(record.facts.objective),
            RecordedMap.of(record, gradients.policy, flat_gradient),
            torch.cat(slopes),
        )

    def by_example(self, numbers: Sequence[int]) -> Float[Tensor, "examples parameters"]:
        """The gradients of the loss through some examples."""
        batch = self._batch(numbers)
        rows = self.gradients.rows(self.record.before, len(numbers))
        losses = ResponseLosses(self.objective, batch)
        self.gradients.add(self.record.before, batch, losses, batch.example, into=rows)
        return rows

    def by_side(self, number: int) -> Float[Tensor, "2 parameters"]:
        """The gradients of the loss through the chosen and the rejected responses of an example."""
        batch = self._batch([number])
        responses = torch.arange(
            len(batch.side)
        )  # each has a row, as sides need not stand together
        rows = self.gradients.rows(self.record.before, len(responses))
        losses = ResponseLosses(self.objective, batch)
        self.gradients.add(self.record.before, batch, losses, responses, into=rows)
        side_of_row = batch.side.to(rows.device)
        return torch.stack([rows[side_of_row == side].sum(0) for side in (CHOSEN, REJECTED)])

    def lines(self, rows: Float[Tensor, "parts parameters"]) -> Float[Tensor, "observed parts"]:
        """Lines of parts of the gradient, a row each, as a ledger has those of responses.

        Without a tail: what momentum carries into later steps does not count.
        """
        change = Change(self.record.after, self.map.before)
        blocks = block_columns(self.record.before)
        # Without labels: only a step's entries name its rows.
        step = StepMade(self.record.facts.step, (), rows, self.map, change, blocks)
        total = torch.zeros(len(self.slopes), len(rows), dtype=torch.float64)
        for _, columns in step.slices(len(rows) + len(self.slopes)):
            here = self.map.at(columns)
            parts = step.parts(columns, here.gradient.device)
            removal = step.removal(here, self.slopes[:, columns].to(parts))
            total += removal.lines(parts, step.factors).cpu()
        return total

    def _batch(self, numbers: Sequence[int]) -> TokenBatch:
        examples = [self.record.examples[number] for number in numbers]
        totals = step_totals(self.record.examples, self.objective)
        return objective_batch(examples, self.objective, totals, self.gradients.policy)
