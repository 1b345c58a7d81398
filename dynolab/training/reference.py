"""Reference log-probabilities: scored once, before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab import distributed
from dynolab.data.batches import CHOSEN, collate
from dynolab.data.encode import EncodedExample
from dynolab.likelihood import ResponseLogits, token_logps

SideLogps = dict[int, Float[Tensor, "tokens"]]


def score_reference(
    logits: ResponseLogits, examples: Sequence[EncodedExample], sides: Sequence[int],
    pad_id: int, batch: int,
) -> dict[str, SideLogps]:  # fmt: skip
    """Per-token log-probabilities of every example's sides under the given weights.

    The examples are shared out over the ranks; every rank returns all of them.

    **Returns:** example id → side → log-probabilities in nats, one per response token.
    """
    mine = examples[distributed.rank() :: distributed.world_size()]
    rows: list[tuple[str, int, Tensor]] = []
    device = distributed.device()
    with torch.no_grad():
        for start in range(0, len(mine), batch):
            part = mine[start : start + batch]
            keys = [(one.id, side) for one in part for side in sides]
            sequences = [
                one.chosen if side == CHOSEN else one.rejected for one in part for side in sides
            ]
            tokens = collate([one for one in sequences if one is not None], pad_id).to(device)
            logps = token_logps(logits(tokens), tokens).cpu()
            for number, (name, side) in enumerate(keys):
                rows.append((name, side, logps[(tokens.sequence == number).cpu()]))
    scored: dict[str, SideLogps] = {}
    for name, side, values in chain.from_iterable(distributed.gather(rows)):
        scored.setdefault(name, {})[side] = values
    return scored
