"""Supervised finetuning on the preferred answer."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dynolab.data.batches import CHOSEN, TokenBatch


class SFTConfig(BaseModel):
    """Settings of supervised finetuning."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Literal["sft"] = "sft"
    normalise: Literal["sequence_sum", "token_mean"] = Field(
        "sequence_sum",
        description="Sum over a response's tokens, averaged over examples (the papers' choice), "
        "or mean over all tokens of the step.",
    )


class SFT:
    """`L = −Σ_l log π(y_l | x, y_<l)`, divided by the step's examples or tokens.

    Force: `c_l = 1/denominator`, so `G_l = (π_l − e_{y_l})/denominator`
    (Ren & Sutherland, arXiv 2407.10490, eq. 4).
    """

    sides: ClassVar[tuple[int, ...]] = (CHOSEN,)
    needs_reference: ClassVar[bool] = False

    def __init__(self, config: SFTConfig) -> None:
        self.config = config

    def _denominator(self, batch: TokenBatch) -> int:
        by_token = self.config.normalise == "token_mean"
        return batch.totals.tokens if by_token else batch.totals.examples

    def loss(self, logps: Float[Tensor, tokens], batch: TokenBatch) -> Float[Tensor, ""]:
        """The batch's share of the step's negative log-likelihood."""
        return -logps.sum() / self._denominator(batch)

    def learning_rates(
        self, logps: Float[Tensor, tokens], batch: TokenBatch
    ) -> Float[Tensor, tokens]:
        """c_l = 1/denominator."""
        return torch.full_like(logps, 1 / self._denominator(batch))

    def metrics(
        self, logps: Float[Tensor, tokens], batch: TokenBatch
    ) -> dict[str, Float[Tensor, ""]]:
        """Log-probability of the answers trained on."""
        return {"train/chosen_logp": logps.detach().sum()}
