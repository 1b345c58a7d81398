"""Log-likelihood of probe rows under a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import nn

from dynolab.data.batches import TokenBatch, by_length, collate
from dynolab.data.encode import Encoded, Encoder
from dynolab.data.results import Score
from dynolab.data.rows import ProbeRow
from dynolab.likelihood import argmax_view, token_logps

Item = TypeVar("Item")


def score_probes(
    model: nn.Module,
    rows: Sequence[ProbeRow],
    encoder: Encoder,
    *,
    batch_tokens: int,
    share: tuple[int, int] = (0, 1),
    device: torch.device | str | None = None,
) -> list[Score]:
    """Scores rows, in their order, without gradient and in eval mode (the mode is put back).

    Rows that the overlong rule drops have no score.

    **Arguments:**

    - `model`: a `ResponseLogits`, or what an engine wrapped around one.
    - `encoder`: how rows are encoded; its counts are left alone.
    - `batch_tokens`: bound of sequences × padded length of one forward; a longer row goes alone.
    - `share`: `(rank, world)`: only this rank's run of rows is scored here; the ranks' results
      joined in rank order are in the rows' order.
    - `device`: where the model computes; by default where its first parameter lies.
    """
    own = Encoder(encoder.tokenizer, encoder.max_length, encoder.overlong)
    encoded = [(row, own.response(row.pair_id, row.prompt, row.response)) for row in rows]
    kept = _share([(row, one) for row, one in encoded if one is not None], *share)
    scores: dict[int, Score] = {}
    tokenizer = encoder.tokenizer
    pad_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    where = device if device is not None else next(model.parameters()).device
    training = model.training
    model.eval()
    try:
        for members in by_length([one for _, one in kept], batch_tokens):
            batch = [kept[member] for member in members]
            tokens = collate([one for _, one in batch], int(pad_id)).to(where)
            scores |= dict(zip(members, _score(model, batch, tokens), strict=True))
    finally:
        model.train(training)
    return [scores[number] for number in range(len(kept))]


def _share(items: list[Item], rank: int, world: int) -> list[Item]:
    return items[len(items) * rank // world : len(items) * (rank + 1) // world]


@torch.no_grad()
def _score(
    model: nn.Module, rows: Sequence[tuple[ProbeRow, Encoded]], batch: TokenBatch
) -> list[Score]:
    logits = model(batch)
    logps = batch.sequence_sum(token_logps(logits, batch)).tolist()
    top = argmax_view(logits)
    best = batch.sequence_sum(top.logp).tolist()
    outside = batch.sequence_sum(top.outside_logmass).tolist()
    mass = batch.sequence_sum(top.outside_logmass.exp()).tolist()
    equal = batch.sequence_sum((top.token == batch.token).to(logits.dtype)).tolist()
    scores = []
    for number, (row, encoded) in enumerate(rows):
        tokens = encoded.response_length
        score = Score(
            pair_id=row.pair_id, split=row.split, kind=row.kind, tokens=tokens, logp=logps[number]
        )
        if row.kind == "chosen":
            score = score.model_copy(
                update={
                    "argmax_logp": best[number],
                    "outside_logmass": outside[number],
                    "outside_mass": mass[number] / tokens,
                    "argmax_tokens_equal": equal[number] / tokens,
                }
            )
        scores.append(score)
    return scores
