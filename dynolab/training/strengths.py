"""Dynamic learning rates of a step, and their quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dynolab import distributed
from dynolab.data.batches import TokenBatch
from dynolab.objectives import Objective
from dynolab.objectives.clipping import ClippedConfig, aggregation_weights
from dynolab.objectives.pairs import PairObjective

QUANTILES = (5, 25, 50, 75, 95)


@torch.no_grad()
def strengths(
    objective: Objective, logps: Float[Tensor, "tokens ..."], batch: TokenBatch
) -> Float[Tensor, " pushes"] | None:
    """Dynamic learning rates c_l times their denominators; None if all are equal (SFT).

    For pairs one per response: `|∂φ/∂s|`, β(1 − σ) under DPO, with a minus sign if the objective
    pushes chosen down or rejected up. For groups one per token: Âρ unless clipped.
    """
    if isinstance(objective, PairObjective):
        return objective.response_rates(logps, batch)
    config = getattr(objective, "config", None)
    if not isinstance(config, ClippedConfig):
        return None
    rates = objective.token_weights(logps, batch).reshape(len(batch.token), -1).sum(1)
    return rates / aggregation_weights(config, batch, rates)


def quantiles(mine: Sequence[Float[Tensor, " _"]]) -> dict[str, float]:
    """Quantiles of the step's dynamic learning rates over all ranks, by metric name."""
    # One copy to the host for all micro-batches.
    own = [torch.cat(list(mine)).cpu()] if mine else []
    every = list(chain.from_iterable(distributed.gather(own)))
    if not every:
        return {}
    values = np.percentile(torch.cat(every).double().numpy(), QUANTILES).tolist()
    return {
        f"train/dynamic_learning_rate/q{q:02d}": value
        for q, value in zip(QUANTILES, values, strict=True)
    }
