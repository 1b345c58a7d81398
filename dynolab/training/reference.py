"""Log-probabilities under weights that do not learn: of the reference, and of the policy that
sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab import distributed
from dynolab.data.batches import CHOSEN, collate
from dynolab.data.encode import Encoded, EncodedExample
from dynolab.data.packing import plan_rows, share_prompts
from dynolab.likelihood.packed import Reading
from dynolab.likelihood.token_logps import ResponseLogits, packing_width, token_logps

SideLogps = dict[int, Float[Tensor, " tokens"]]


def score_reference(
    logits: ResponseLogits,
    examples: Sequence[EncodedExample],
    sides: Sequence[int],
    pad_id: int,
    batch: int,
) -> dict[str, SideLogps]:
    """Per-token log-probabilities of every example's sides under the given weights.

    The examples are shared out over the ranks, `batch` to a forward; every rank returns all.

    **Returns:** example id → side → log-probabilities in nats, one per response token.
    """
    scored = score_sides(logits, examples, sides, pad_id, batch)
    return {example.id: scores for example, scores in zip(examples, scored, strict=True)}


def score_sides(
    logits: ResponseLogits,
    examples: Sequence[EncodedExample],
    sides: Sequence[int],
    pad_id: int,
    batch: int,
) -> list[SideLogps]:
    """As `score_reference`, in the order of the examples, whose ids may be alike."""
    answers = [
        example.chosen if side == CHOSEN else example.rejected
        for example in examples
        for side in sides
    ]
    known = [answer for answer in answers if answer is not None]
    logps = iter(score_responses(logits, known, pad_id, batch * len(sides)))
    return [{side: next(logps) for side in sides} for _ in examples]


@torch.no_grad()
def score_responses(
    logits: ResponseLogits,
    sequences: Sequence[Encoded],
    pad_id: int,
    batch: int,
    read: Reading = token_logps,
    *,
    temperature: float = 1.0,
) -> list[Float[Tensor, "response ..."]]:
    """What is read of each sequence's response tokens under the given weights, on the CPU.

    Runs of `batch` sequences are shared out over the ranks; every rank returns all. By default
    log-probabilities in nats, at a temperature.
    """
    runs = [sequences[start : start + batch] for start in range(0, len(sequences), batch)]
    device = distributed.device()
    mine: list[list[Tensor]] = []
    for run in distributed.deal(runs):
        tokens = replace(collate(run, pad_id), temperature=temperature)
        shared = share_prompts(tokens, plan_rows(run, packing_width(logits))).to(device)
        values = logits(shared, read).cpu()
        parts = values.split([sequence.response_length for sequence in run])
        mine.append([part.clone() for part in parts])  # apart: a view would drag all along
    return list(chain.from_iterable(distributed.gather_dealt(mine)))
