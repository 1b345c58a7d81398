"""Simple preference optimisation: average log-probabilities, no reference."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from pydantic import Field

from dynolab.objectives.pairs import Answers, PairConfig, PairObjective, Pairs


class SimPOConfig(PairConfig):
    """Settings of simple preference optimisation."""

    name: Literal["simpo"] = "simpo"
    beta: float = Field(default=2.0, gt=0, description="Scale β of the average log-probability.")
    margin: float = Field(
        default=0.5, ge=0, description="Target margin γ of the rewards, after scaling with β."
    )


class SimPO(PairObjective[SimPOConfig]):
    """`φ = −log σ(β(a_c − a_r) − γ)`, a the mean log-probability of a response's tokens.

    Meng et al., arXiv 2405.14734, eq. 6. Force: `c_l = ±β(1 − σ)/n`, plus on chosen and minus on
    rejected tokens, divided by the pairs; n is the length of the token's own response, so that a
    short answer's tokens are pushed harder.
    """

    needs_reference = False
    averages = True

    def pair_loss(self, chosen: Answers, rejected: Answers) -> Pairs:
        """−log σ(β(a_c − a_r) − γ)."""
        return -F.logsigmoid(self.config.beta * (chosen.mean - rejected.mean) - self.config.margin)
