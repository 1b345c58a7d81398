"""Sequence likelihood calibration: a hinge on plain log-probabilities."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from dynolab.objectives.pairs import Answers, PairConfig, PairObjective, Pairs


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

    needs_reference = False

    def pair_loss(self, chosen: Answers, rejected: Answers) -> Pairs:
        """max(0, δ − log π(y_c) + log π(y_r)) − λ log π(y_c)."""
        hinge = torch.relu(self.config.margin - (chosen.logp - rejected.logp))
        return hinge - self.config.sft_weight * chosen.logp
