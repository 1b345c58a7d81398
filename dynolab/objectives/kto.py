"""Losses on single answers with a label, good or bad."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dynolab.data.batches import CHOSEN, TokenBatch
from dynolab.objectives.base import Objective


class KTOConfig(BaseModel):
    """Settings of Kahneman-Tversky optimisation; names and defaults are TRL's."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Literal["kto"] = "kto"
    loss_type: Literal["kto", "apo_zero_unpaired"] = Field(
        default="kto",
        description="kto: log-ratios are measured from the policy's drift, estimated by each step. "
        "apo_zero_unpaired: from zero.",
    )
    beta: float = Field(
        default=0.1, gt=0, description="Inverse temperature β of the implicit reward."
    )
    desirable_weight: float = Field(default=1.0, ge=0, description="Weight λ of good answers.")
    undesirable_weight: float = Field(default=1.0, ge=0, description="Weight λ of bad answers.")


class KTO(Objective):
    """`L = mean over rows of λ σ(∓β(h − z))`, h a response's log-ratio; minus for good ones.

    Ethayarajh et al., arXiv 2402.01306, eq. 7: z is the mean log-ratio of the step's prompts with
    other rows' answers, at least 0, which the step holds constant (`TokenBatch.drift`; 0 where none
    is given, as at the reference itself). Without z it is the unpaired APO-zero (D'Oosterlinck et
    al., arXiv 2408.06266). Force: `c_l = ±λβ σ(β(h − z))σ(−β(h − z))`, plus on good and minus on
    bad answers, divided by the step's rows.
    """

    needs_reference = True

    def __init__(self, config: KTOConfig) -> None:
        self.config = config

    def _ratio(self, logps: Float[Tensor, " tokens"], batch: TokenBatch) -> Tensor:
        assert batch.reference is not None, "the reference is scored before the first step"
        return batch.sequence_sum(logps - batch.reference)

    def loss(self, logps: Float[Tensor, " tokens"], batch: TokenBatch) -> Float[Tensor, ""]:
        """The batch's share of the step's loss."""
        good = batch.side == CHOSEN
        drift = batch.drift or 0.0 if self.config.loss_type == "kto" else 0.0
        ratio = self.config.beta * (self._ratio(logps, batch) - drift)
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
