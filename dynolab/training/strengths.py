"""Quantiles of a step's dynamic learning rates."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dynolab import distributed
from dynolab.data.batches import REJECTED, TokenBatch
from dynolab.objectives import Objective
from dynolab.objectives.clipping import ClippedConfig, aggregation_weights
from dynolab.objectives.pairs import PairObjective

QUANTILES = (5, 25, 50, 75, 95)


@torch.no_grad()
def strengths(
    objective: Objective, logps: Float[Tensor, "tokens ..."], batch: TokenBatch
) -> Float[Tensor, " pushes"] | None:
    """Dynamic learning rates c_l times their denominators; None where all are alike (SFT).

    Of pairs one per response, `|∂φ/∂s|` in the direction that the objective means (β(1 − σ) under
    DPO): negative where it pushes chosen down or rejected up. Of groups one per token, Âρ where
    nothing is clipped.
    """
    if isinstance(objective, PairObjective):
        rates = objective.token_weights(logps, batch) * batch.totals.examples
        # The tokens of a response share a rate, divided by their number where scores are averages.
        whole = batch.sequence_sum(rates)
        each = whole if objective.averages else whole / batch.sequence_length
        return torch.where(batch.side == REJECTED, -each, each)
    config = getattr(objective, "config", None)
    if not isinstance(config, ClippedConfig):
        return None
    rates = objective.token_weights(logps, batch).reshape(len(batch.token), -1).sum(1)
    return rates / aggregation_weights(config, batch, rates)


def quantiles(mine: Sequence[Float[Tensor, " _"]]) -> dict[str, float]:
    """Quantiles of the step's strengths over all ranks, under their metric names."""
    every = list(chain.from_iterable(distributed.gather([strengths.cpu() for strengths in mine])))
    if not every:
        return {}
    values = np.percentile(torch.cat(every).double().numpy(), QUANTILES).tolist()
    return {
        f"train/dynamic_learning_rate/q{q:02d}": value
        for q, value in zip(QUANTILES, values, strict=True)
    }
