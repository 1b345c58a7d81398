"""Simple preference optimisation: average log-probabilities, no reference."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from dynolab.objectives.pairs import PairConfig, PairObjective, Pairs


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

    needs_reference: ClassVar[bool] = False

    @property
    def averages(self) -> bool:
        """True: the reward is an average over tokens."""
        return True

    @property
    def reward_scale(self) -> float:
        """β: the reward is β a."""
        return self.config.beta

    def _margin(self, chosen: Pairs, rejected: Pairs) -> Pairs:
        return self.config.beta * (chosen - rejected) - self.config.margin

    def pair_loss(self, chosen: Pairs, rejected: Pairs) -> Pairs:
        """−log σ(β(a_c − a_r) − γ)."""
        return -F.logsigmoid(self._margin(chosen, rejected))

    def pair_rates(self, chosen: Pairs, rejected: Pairs) -> tuple[Pairs, Pairs]:
        """β(1 − σ) on both sides."""
        rate = self.config.beta * torch.sigmoid(-self._margin(chosen, rejected))
        return rate, rate
