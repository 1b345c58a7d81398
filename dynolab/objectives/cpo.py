"""Losses on pairs that need no reference and keep the chosen answer likely: CPO and ORPO."""

from __future__ import annotations

from typing import Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator

from dynolab.errors import ConfigError
from dynolab.objectives.pairs import Answers, PairConfig, PairObjective, Pairs


class CPOConfig(PairConfig):
    """Settings of contrastive preference optimisation; names and defaults are TRL's."""

    name: Literal["cpo"] = "cpo"
    beta: float = Field(default=0.1, gt=0, description="Scale β of the log-probabilities.")
    loss_type: Literal["sigmoid", "hinge", "ipo", "simpo"] = Field(
        default="sigmoid",
        description="Loss on the margin. ipo and simpo read means over an answer's tokens.",
    )
    label_smoothing: float = Field(
        default=0.0,
        ge=0,
        lt=0.5,
        description="Assumed share ε of pairs with swapped labels, of sigmoid and simpo.",
    )
    cpo_alpha: float = Field(
        default=1.0, ge=0, description="Weight of the chosen answers' negative log-likelihood."
    )
    simpo_gamma: float = Field(default=0.5, ge=0, description="Target margin γ of simpo.")
    alpha: float = Field(
        default=0.0,
        description="AlphaPO's α: an answer's reward is (1 − π^−α)/α in place of log π.",
    )

    @model_validator(mode="after")
    def _smooths(self) -> Self:
        if self.label_smoothing and self.loss_type in ("hinge", "ipo"):
            raise ConfigError(
                "objective.label_smoothing",
                self.label_smoothing,
                f"{self.loss_type} has no smoothed form; leave it out",
            )
        return self


class CPO(PairObjective[CPOConfig]):
    """`φ = −log σ(β m)` and the chosen answers' likelihood, `m = r_c − r_r`.

    Xu et al., arXiv 2401.08417, eq. 3. r is log π, its mean over tokens for `ipo` and `simpo`, or
    `(1 − e^{−α log π})/α` of it (AlphaPO, arXiv 2501.03884). Other forms: `max(0, 1 − β m)`,
    `(m − 1/(2β))²`, and SimPO's `−log σ(β m − γ)`. Force of `sigmoid`: `±β σ(−β m)`, plus on
    chosen and minus on rejected tokens, divided by the pairs; chosen tokens get
    `cpo_alpha` / (the step's chosen tokens) more.
    """

    needs_reference = False

    @property
    def averages(self) -> bool:
        """Whether rewards are means over tokens."""
        return self.config.loss_type in ("ipo", "simpo")

    @property
    def likelihood_weight(self) -> float:
        """`cpo_alpha`."""
        return self.config.cpo_alpha

    def pair_loss(self, chosen: Answers, rejected: Answers) -> Pairs:
        """The loss of the margin between both rewards."""
        config = self.config
        margin = config.beta * (self._reward(chosen) - self._reward(rejected))
        if config.loss_type == "hinge":
            return torch.relu(1 - margin)
        if config.loss_type == "ipo":
            return ((margin - 0.5) / config.beta).square()
        if config.loss_type == "simpo":
            margin = margin - config.simpo_gamma
        noise = config.label_smoothing
        return -(1 - noise) * F.logsigmoid(margin) - noise * F.logsigmoid(-margin)

    def _reward(self, answers: Answers) -> Pairs:
        logp, alpha = answers.mean if self.averages else answers.logp, self.config.alpha
        return -torch.expm1(-alpha * logp) / alpha if alpha else logp


class ORPOConfig(PairConfig):
    """Settings of odds ratio preference optimisation."""

    name: Literal["orpo"] = "orpo"
    beta: float = Field(default=0.1, gt=0, description="Weight λ of the odds ratio.")


class ORPO(PairObjective[ORPOConfig]):
    """`φ = −β log σ(o_c − o_r)` and the chosen answers' likelihood, o the log-odds of an answer.

    Hong et al., arXiv 2403.07691, eq. 6 and 7: `o = a − log(1 − e^a)`, a the mean log π of the
    answer's tokens. The likelihood is that of the answer, as in the paper's eq. 2; TRL's trainer
    adds that of the prompt.
    """

    needs_reference = False
    averages = True
    likelihood_weight = 1.0

    def pair_loss(self, chosen: Answers, rejected: Answers) -> Pairs:
        """−β log σ(o_c − o_r)."""
        odds = [side.mean - torch.log(-torch.expm1(side.mean)) for side in (chosen, rejected)]
        return -self.config.beta * F.logsigmoid(odds[0] - odds[1])
