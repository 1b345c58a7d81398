"""Batches of watched answers, with the model's own choice y* beside every chosen one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dynolab.data.batches import TokenBatch, collate
from dynolab.data.encode import Encoded
from dynolab.data.results import ARGMAX
from dynolab.data.rows import ProbeRow
from dynolab.forces.policy import PolicyFunction, Weights
from dynolab.forces.split import PAD_ID
from dynolab.likelihood import argmax_view, token_logps


@dataclass(frozen=True)
class Watched:
    """A batch of answers with y* of the chosen ones as further answers on the same sequences.

    Answer a is of kind `kind[a]` and belongs to row `row[a]`; token n counts towards answer
    `answer[n]`. `start` is log π before the step.
    """

    batch: TokenBatch
    answer: Int[Tensor, tokens]
    row: list[int]
    kind: list[str]
    start: Float[Tensor, tokens]

    def sums(self, values: Float[Tensor, tokens]) -> Float[Tensor, answers]:
        """Sums of a per-token quantity over each answer."""
        zeros = torch.zeros(len(self.row), dtype=torch.float64, device=values.device)
        return zeros.index_add(0, self.answer, values.double())


@torch.no_grad()
def watch(
    rows: Sequence[tuple[ProbeRow, Encoded]], before: Weights, policy: PolicyFunction
) -> Watched:
    """The batch of some rows, their log π and their argmax tokens at the weights before a step."""
    batch = collate([one for _, one in rows], PAD_ID).to(policy.device)
    logits = policy.logits(policy.cast(before), batch)
    best = argmax_view(logits)
    row, kind = list(range(len(rows))), [probe.kind for probe, _ in rows]
    chosen = [number for number, (probe, _) in enumerate(rows) if probe.kind == "chosen"]
    answer_of = torch.full((len(rows),), -1, device=policy.device)
    for number in chosen:
        answer_of[number] = len(row)
        row.append(number)
        kind.append(ARGMAX)
    again = answer_of[batch.sequence] >= 0
    both = replace(
        batch,
        sequence=torch.cat([batch.sequence, batch.sequence[again]]),
        position=torch.cat([batch.position, batch.position[again]]),
        token=torch.cat([batch.token, best.token[again]]),
    )
    return Watched(
        batch=both,
        answer=torch.cat([batch.sequence, answer_of[batch.sequence][again]]),
        row=row,
        kind=kind,
        start=torch.cat([token_logps(logits, batch), best.logp[again]]),
    )
