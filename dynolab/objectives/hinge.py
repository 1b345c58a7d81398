"""Hinge losses on pairs: SLiC on plain log-probabilities, and the hinge on DPO's margin."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field

from dynolab.objectives.pairs import PairConfig, PairObjective, Pairs


class SLiCConfig(PairConfig):
    """Settings of sequence likelihood calibration."""

    name: Literal["slic"] = "slic"
    margin: float = Field(
        default=1.0, gt=0, description="Margin δ of the log-probabilities, in nats."
    )
    sft_weight: float = Field(
        default=0.1, ge=0, description="Weight λ of the chosen answer's negative log-likelihood."
    )


class SLiC(PairObjective[SLiCConfig]):
    """`φ = max(0, δ − log π(y_c) + log π(y_r)) − λ log π(y_c)`, without a reference.

    Zhao et al., arXiv 2305.10425, eq. 1; the paper leaves open which answer its second term
    keeps likely: here the chosen one. Force: `c_l = 1[live] + λ` on chosen and `−1[live]` on
    rejected tokens, divided by the pairs; live means that the margin is not reached.
    """

    needs_reference: ClassVar[bool] = False

    @property
    def reward_scale(self) -> float:
        """One: the log-probabilities themselves are compared."""
        return 1.0

    def pair_loss(self, chosen: Pairs, rejected: Pairs) -> Pairs:
        """max(0, δ − log π(y_c) + log π(y_r)) − λ log π(y_c)."""
        hinge = torch.relu(self.config.margin - (chosen - rejected))
        return hinge - self.config.sft_weight * chosen

    def pair_rates(self, chosen: Pairs, rejected: Pairs) -> tuple[Pairs, Pairs]:
        """1[live] + λ on chosen, 1[live] on rejected."""
        live = (self.config.margin - (chosen - rejected) > 0).to(chosen.dtype)
        return live + self.config.sft_weight, live


class HingeConfig(PairConfig):
    """Settings of the hinge on DPO's margin."""

    name: Literal["hinge"] = "hinge"
    beta: float = Field(
        default=0.1, gt=0, description="Inverse temperature β of the implicit reward."
    )


class Hinge(PairObjective[HingeConfig]):
    """`φ = max(0, 1 − β d)`, `d = h_c − h_r`: DPO's margin under a hinge, TRL's `hinge`.

    Liu et al., arXiv 2309.06657 (SLiC's hinge on log-ratios). Force: `c_l = ±β 1[live]`, plus on
    chosen and minus on rejected tokens, divided by the pairs; live means β d < 1.
    """

    @property
    def reward_scale(self) -> float:
        """β: the implicit reward is β h."""
        return self.config.beta

    def _slack(self, chosen: Pairs, rejected: Pairs) -> Pairs:
        return 1 - self.config.beta * (chosen - rejected)

    def pair_loss(self, chosen: Pairs, rejected: Pairs) -> Pairs:
        """max(0, 1 − β d)."""
        return torch.relu(self._slack(chosen, rejected))

    def pair_rates(self, chosen: Pairs, rejected: Pairs) -> tuple[Pairs, Pairs]:
        """β where the margin is not reached, on both sides."""
        rate = self.config.beta * (self._slack(chosen, rejected) > 0).to(chosen.dtype)
        return rate, rate
