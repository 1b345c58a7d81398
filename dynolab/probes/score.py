"""Log-likelihood of probe rows under a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dynolab.data.batches import TokenBatch
from dynolab.data.encode import Encoded, Encoder
from dynolab.data.packing import collate_rows, plan_rows, rows_by_length
from dynolab.data.results import Score
from dynolab.data.rows import ProbeRow
from dynolab.likelihood import argmax_view, packing_width, token_logps

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
    - `batch_tokens`: bound of rows × padded length of one forward; a longer row goes alone.
      Responses of one prompt share a row.
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
        sequences = [one for _, one in kept]
        plan = plan_rows(sequences, packing_width(model), batch_tokens)
        for rows_of_batch in rows_by_length(sequences, plan, batch_tokens):
            members = [number for row in rows_of_batch for number in row]
            batch = [kept[member] for member in members]
            tokens = collate_rows(sequences, rows_of_batch, int(pad_id)).to(where)
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
    sums = [batch.sequence_sum(column).tolist() for column in model(batch, _read).unbind(1)]
    logps, best, outside, mass, equal = sums
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


def _read(logits: Float[Tensor, "tokens vocabulary"], batch: TokenBatch) -> Tensor:
    """Per response token what a score sums: of the token itself, then of the argmax."""
    top = argmax_view(logits)
    columns = (
        token_logps(logits, batch),
        top.logp,
        top.outside_logmass,
        top.outside_logmass.exp(),
        (top.token == batch.token).to(logits.dtype),
    )
    return torch.stack(columns, dim=1)
