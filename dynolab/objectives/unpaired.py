"""Losses on single answers with a label, good or bad."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dynolab.data.batches import CHOSEN, TokenBatch
from dynolab.objectives.base import Objective


class UnpairedConfig(BaseModel):
    """Settings of APO-zero on single answers; names and defaults are those of TRL's `KTOConfig`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Literal["apo_zero_unpaired"] = "apo_zero_unpaired"
    beta: float = Field(
        default=0.1, gt=0, description="Inverse temperature β of the implicit reward."
    )
    desirable_weight: float = Field(default=1.0, ge=0, description="Weight λ of good answers.")
    undesirable_weight: float = Field(default=1.0, ge=0, description="Weight λ of bad answers.")


class Unpaired(Objective):
    """`L = mean over rows of λ σ(∓β h)`, h a response's log-ratio; minus for good, plus for bad.

    D'Oosterlinck et al., arXiv 2408.06266 (unpaired eq. 7); KTO's loss (arXiv 2402.01306, eq. 7)
    with its reference point at zero, where KTO takes a batch's estimate of the divergence. Force:
    `c_l = ±λβ σ(βh)σ(−βh)`, plus on good and minus on bad answers, divided by the step's rows.
    """

    needs_reference = True

    def __init__(self, config: UnpairedConfig) -> None:
        self.config = config

    def _ratio(self, logps: Float[Tensor, " tokens"], batch: TokenBatch) -> Tensor:
        assert batch.reference is not None, "the reference is scored before the first step"
        return batch.sequence_sum(logps - batch.reference)

    def loss(self, logps: Float[Tensor, " tokens"], batch: TokenBatch) -> Float[Tensor, ""]:
        """The batch's share of the step's loss."""
        good = batch.side == CHOSEN
        ratio = self.config.beta * self._ratio(logps, batch)
        weight = torch.full_like(ratio, self.config.undesirable_weight)
        weight = weight.masked_fill(good, self.config.desirable_weight)
        if batch.weight is not None:
            weight = weight * batch.weight.to(weight)
        values = torch.sigmoid(torch.where(good, -ratio, ratio))
        return (weight * values).sum() / batch.totals.examples

    @torch.no_grad()
    def metrics(
        self, logps: Float[Tensor, " tokens"], batch: TokenBatch
    ) -> dict[str, Float[Tensor, ""]]:
        """Sums of log-probability and reward of good and of bad answers, over all answers."""
        values = {
            "logp": batch.sequence_sum(logps),
            "reward": self.config.beta * self._ratio(logps, batch),
        }
        good = (batch.side == CHOSEN).to(logps)
        return {
            "train/chosen_logp": (good * values["logp"]).sum(),
            "train/rejected_logp": ((1 - good) * values["logp"]).sum(),
            "train/reward_chosen": (good * values["reward"]).sum(),
            "train/reward_rejected": ((1 - good) * values["reward"]).sum(),
        }
