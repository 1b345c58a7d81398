"""Log-likelihood of probe rows under a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from dynolab.data.batches import TokenBatch, collate
from dynolab.data.encode import Encoded, Encoder
from dynolab.data.rows import ProbeRow
from dynolab.likelihood import argmax_view, token_logps

Score = dict[str, Any]
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

    Every score holds `pair_id`, `split`, `kind`, `tokens` (end-of-sequence included) and `logp`,
    the sum of `log π(y_l | x, y_<l)` in nats. Kind `chosen` adds y*, the model's own choice at
    every position of the teacher-forced answer: `argmax_logp` = Σ_l max_v log π(v | x, y_<l),
    `outside_logmass` = Σ_l log(1 − π(argmax)), `outside_mass`, the mean over positions of
    1 − π(argmax), and `argmax_tokens_equal`, the share of positions where the argmax is the
    answer's own token. Rows that the overlong rule drops have no score.

    **Arguments:**

    - `model`: a `ResponseLogits`, or an engine's forward of one.
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
    scores: list[Score] = [{} for _ in kept]
    tokenizer = encoder.tokenizer
    pad_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    where = device if device is not None else next(model.parameters()).device
    training = model.training
    model.eval()
    try:
        for members in _batches([one for _, one in kept], batch_tokens):
            batch = [kept[member] for member in members]
            tokens = collate([one for _, one in batch], int(pad_id)).to(where)
            for member, score in zip(members, _score(model, batch, tokens), strict=True):
                scores[member] = score
    finally:
        model.train(training)
    return scores


def _share(items: list[Item], rank: int, world: int) -> list[Item]:
    return items[len(items) * rank // world : len(items) * (rank + 1) // world]


def _batches(encoded: Sequence[Encoded], batch_tokens: int) -> Iterator[list[int]]:
    """Row numbers by falling length: little padding, and too large a batch fails first."""
    order = sorted(range(len(encoded)), key=lambda number: -len(encoded[number].ids))
    batch: list[int] = []
    for number in order:
        if batch and (len(batch) + 1) * len(encoded[batch[0]].ids) > batch_tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


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
        score = {
            "pair_id": row.pair_id, "split": row.split, "kind": row.kind,
            "tokens": tokens, "logp": logps[number],
        }  # fmt: skip
        if row.kind == "chosen":
            score["argmax_logp"] = best[number]
            score["outside_logmass"] = outside[number]
            score["outside_mass"] = mass[number] / tokens
            score["argmax_tokens_equal"] = equal[number] / tokens
        scores.append(score)
    return scores
