"""Direct preference optimisation."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch


class DPOConfig(BaseModel):
    """Settings of direct preference optimisation."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Literal["dpo"] = "dpo"
    beta: float = Field(0.1, gt=0, description="Inverse temperature β of the implicit reward.")


class DPO:
    """`L = −log σ(β d)`, `d = h_c − h_r`, h the response's log-ratio of policy to reference.

    Rafailov et al., arXiv 2305.18290, eq. 7. Force (Ren & Sutherland, arXiv 2407.10490, eq. 8):
    `c_l = +β(1 − σ(β d))` on chosen and `−β(1 − σ(β d))` on rejected tokens, over the step's
    pairs; β(1 − σ) is the response-level dynamic learning rate.
    """

    sides: ClassVar[tuple[int, ...]] = (CHOSEN, REJECTED)
    needs_reference: ClassVar[bool] = True

    def __init__(self, config: DPOConfig) -> None:
        self.config = config

    def _rewards(
        self, logps: Float[Tensor, tokens], batch: TokenBatch
    ) -> tuple[Float[Tensor, pairs], Float[Tensor, pairs]]:
        """Implicit rewards β·h of the chosen and the rejected response of each pair."""
        assert batch.reference is not None, "the trainer scores the reference before the first step"
        log_ratio = self.config.beta * batch.sequence_sum(logps - batch.reference)
        return log_ratio[batch.side == CHOSEN], log_ratio[batch.side == REJECTED]

    def loss(self, logps: Float[Tensor, tokens], batch: TokenBatch) -> Float[Tensor, ""]:
        """The batch's share of the step's mean −log σ(β d)."""
        chosen, rejected = self._rewards(logps, batch)
        return -F.logsigmoid(chosen - rejected).sum() / batch.totals.examples

    def learning_rates(
        self, logps: Float[Tensor, tokens], batch: TokenBatch
    ) -> Float[Tensor, tokens]:
        """c_l = ±β(1 − σ(β d))/pairs, plus for chosen and minus for rejected tokens."""
        chosen, rejected = self._rewards(logps, batch)
        rate = self.config.beta * torch.sigmoid(rejected - chosen) / batch.totals.examples
        sign = 1.0 - 2.0 * (batch.token_side == REJECTED).to(logps.dtype)
        return sign * rate[batch.example[batch.sequence]]

    def metrics(
        self, logps: Float[Tensor, tokens], batch: TokenBatch
    ) -> dict[str, Float[Tensor, ""]]:
        """Rewards, margin, accuracy, both sides' log-probabilities and β(1 − σ)."""
        logps = logps.detach()
        chosen, rejected = self._rewards(logps, batch)
        total = batch.sequence_sum(logps)
        margin = chosen - rejected
        return {
            "train/margin": margin.sum(),
            "train/accuracy": (margin > 0).to(logps.dtype).sum(),
            "train/reward_chosen": chosen.sum(),
            "train/reward_rejected": rejected.sum(),
            "train/chosen_logp": total[batch.side == CHOSEN].sum(),
            "train/rejected_logp": total[batch.side == REJECTED].sum(),
            "train/dynamic_learning_rate": (self.config.beta * torch.sigmoid(-margin)).sum(),
        }
