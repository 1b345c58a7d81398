"""The examples of one optimizer step, rows or groups alike, as the batch its objective reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import TokenBatch, Totals, collate_examples, count_totals
from dynolab.data.encode import EncodedExample
from dynolab.data.groups import Group, collate_groups, count_group_totals
from dynolab.objectives import Objective


@dataclass(frozen=True)
class ScoredRow:
    """A row of answers with the reference's log-probabilities in nats, side by side.

    `reference` is empty where the objective reads none.
    """

    encoded: EncodedExample
    reference: Mapping[int, Float[Tensor, " response"]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The row's."""
        return self.encoded.id


StepExample = ScoredRow | Group


def count_step(examples: Sequence[StepExample], sides: Sequence[int]) -> Totals:
    """Global denominators of one optimizer step on these examples."""
    rows, groups = _sorted(examples)
    return (
        count_totals([row.encoded for row in rows], sides) if rows else count_group_totals(groups)
    )


def collate_step(
    examples: Sequence[StepExample],
    objective: Objective,
    totals: Totals,
    pad_id: int,
    *,
    temperature: float = 1.0,
) -> TokenBatch:
    """Some examples of a step as their objective sees them: sides, references, denominators.

    **Arguments:**

    - `totals`: the whole step's (`count_step`).
    - `temperature`: at which groups were sampled and are trained.
    """
    rows, groups = _sorted(examples)
    if groups:
        return collate_groups(groups, pad_id, totals, temperature=temperature)
    batch = collate_examples([row.encoded for row in rows], pad_id, objective.sides, totals)
    if not objective.needs_reference:
        return batch
    parts = [row.reference.get(side) for row in rows for side in objective.sides]
    known = [part for part in parts if part is not None]
    return replace(batch, reference=torch.cat(known) if len(known) == len(parts) else None)


def _sorted(examples: Sequence[StepExample]) -> tuple[list[ScoredRow], list[Group]]:
    """A step's examples are all of one kind."""
    rows = [example for example in examples if isinstance(example, ScoredRow)]
    return rows, [example for example in examples if isinstance(example, Group)]
