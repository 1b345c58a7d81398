"""Losses on single answers: supervised finetuning, and KTO on answers with a label."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch
from dynolab.objectives.base import Objective
from dynolab.objectives.registration import register


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


@register(SFTConfig, "SFT", heading="Supervised fine-tuning", in_forms=False)
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
        return {names[side]: total.sum() for side, total in zip(self.sides, totals, strict=True)}


@register(SFTExtendedConfig, "Extended SFT", heading="Supervised fine-tuning on both answers")
class SFTExtended(SFT):
    """SFT on two rows per pair, `(x, y⁺)` and `(x, y⁻)`: the papers' `extend`.

    Before preference training it lifts the rejected answers out of the valley in which a negative
    gradient would squeeze (Ren & Sutherland, arXiv 2407.10490). For the same number of pairs, a
    step has twice as many responses.
    """

    sides: ClassVar[tuple[int, ...]] = (CHOSEN, REJECTED)


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


@register(KTOConfig, "KTO", in_forms=False)
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

    def _ratio(
        self, logps: Float[Tensor, " tokens"], batch: TokenBatch
    ) -> Float[Tensor, " sequences"]:
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
