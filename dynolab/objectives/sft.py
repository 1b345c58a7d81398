"""Supervised finetuning on the preferred answer, or on both answers of a pair."""

from __future__ import annotations

from typing import ClassVar, Literal

from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch
from dynolab.objectives.base import Objective


class LikelihoodConfig(BaseModel):
    """Base of the settings of supervised finetuning."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    normalise: Literal["sequence_sum", "token_mean"] = Field(
        default="sequence_sum",
        description="Sum over a response's tokens, averaged over responses (the papers' choice), "
        "or mean over all tokens of the step.",
    )


class SFTConfig(LikelihoodConfig):
    """Settings of supervised finetuning."""

    name: Literal["sft"] = "sft"


class SFTExtendedConfig(LikelihoodConfig):
    """Settings of supervised finetuning on both answers of every pair."""

    name: Literal["sft_extended"] = "sft_extended"


class SFT(Objective):
    """`L = −Σ_l log π(y_l | x, y_<l)`, divided by the step's responses or tokens.

    A row's terms are multiplied by its weight, if it has one. Force: `c_l = 1/denominator`, so
    `G_l = (π_l − e_{y_l})/denominator` (Ren & Sutherland, arXiv 2407.10490, eq. 4).
    """

    sides: ClassVar[tuple[int, ...]] = (CHOSEN,)
    needs_reference = False

    def __init__(self, config: LikelihoodConfig) -> None:
        self.config = config

    def loss(self, logps: Float[Tensor, " tokens"], batch: TokenBatch) -> Float[Tensor, ""]:
        """The batch's share of the step's negative log-likelihood."""
        if batch.weight is not None:
            logps = batch.weight.to(logps)[batch.sequence] * logps
        by_token = self.config.normalise == "token_mean"
        answers = batch.totals.examples * len(self.sides)
        return -logps.sum() / (batch.totals.tokens if by_token else answers)

    def metrics(
        self, logps: Float[Tensor, " tokens"], batch: TokenBatch
    ) -> dict[str, Float[Tensor, ""]]:
        """Log-probability of the answers trained on."""
        totals = batch.by_side(batch.sequence_sum(logps.detach()), len(self.sides))
        names = {CHOSEN: "train/chosen_logp", REJECTED: "train/rejected_logp"}
        return {names[side]: own.sum() for side, own in zip(self.sides, totals, strict=True)}


class SFTExtended(SFT):
    """SFT on two rows per pair, `(x, y⁺)` and `(x, y⁻)`: the papers' `extend`.

    Before preference training it lifts the rejected answers out of the valley in which a negative
    gradient would squeeze (Ren & Sutherland, arXiv 2407.10490). For the same number of pairs, a
    step has twice as many responses.
    """

    sides: ClassVar[tuple[int, ...]] = (CHOSEN, REJECTED)
