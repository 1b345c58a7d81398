"""Collates the examples of one optimizer step, rows or groups, for their objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import TokenBatch, Totals, collate_examples, count_totals, responses_of
from dynolab.data.encode import EncodedExample
from dynolab.data.groups import Group, collate_groups, count_group_totals
from dynolab.objectives import Objective


@dataclass(frozen=True)
class ScoredRow:
    """A row of answers with the reference's log-probabilities by side, in nats.

    `reference` is empty for objectives without a reference. `dose` is the factor on the push of
    every rejected token, where the step has chosen it; `drift` is the step's (`TokenBatch`).
    """

    encoded: EncodedExample
    reference: Mapping[int, Float[Tensor, " response"]] = field(default_factory=dict)
    dose: Float[Tensor, " rejected"] | None = None
    drift: float | None = None

    @property
    def id(self) -> str:
        """The row's id."""
        return self.encoded.id


StepExample = ScoredRow | Group


def count_step(examples: Sequence[StepExample], sides: Sequence[int]) -> Totals:
    """Counts the global denominators of one optimizer step on these examples."""
    rows, groups = _split_kinds(examples)
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
    """Collates examples of a step with their objective's sides, references and denominators.

    **Arguments:**

    - `totals`: the denominators of the whole step (`count_step`).
    - `temperature`: temperature at which groups were sampled and are trained.
    """
    rows, groups = _split_kinds(examples)
    if groups:
        return collate_groups(groups, pad_id, totals, temperature=temperature)
    batch = collate_examples([row.encoded for row in rows], pad_id, objective.sides, totals)
    batch = replace(batch, dose=_doses(rows), drift=rows[0].drift)
    if not objective.needs_reference:
        return batch
    parts = [
        row.reference.get(side)
        for row in rows
        for side, _ in responses_of(row.encoded, objective.sides)
    ]
    present = [part for part in parts if part is not None]
    return replace(batch, reference=torch.cat(present) if len(present) == len(parts) else None)


def _doses(rows: Sequence[ScoredRow]) -> Float[Tensor, " tokens"] | None:
    """The dose of every token of pairs, 1 on chosen ones; None unless all rows have doses."""
    parts: list[Tensor] = []
    for row in rows:
        if row.dose is None:
            return None
        parts += [row.dose.new_ones(row.encoded.chosen.response_length), row.dose]
    return torch.cat(parts)


def _split_kinds(examples: Sequence[StepExample]) -> tuple[list[ScoredRow], list[Group]]:
    """Splits examples into rows and groups; one of the lists is empty."""
    rows = [example for example in examples if isinstance(example, ScoredRow)]
    return rows, [example for example in examples if isinstance(example, Group)]
