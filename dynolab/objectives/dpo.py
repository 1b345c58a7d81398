"""Direct preference optimisation, with certain or noisy labels."""

from __future__ import annotations

from typing import Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator

from dynolab.errors import ConfigError
from dynolab.objectives.pairs import PairConfig, PairObjective, Pairs


class DPOConfig(PairConfig):
    """Settings of direct preference optimisation."""

    name: Literal["dpo"] = "dpo"
    beta: float = Field(
        default=0.1, gt=0, description="Inverse temperature β of the implicit reward."
    )
    label_smoothing: float = Field(
        default=0.0,
        ge=0,
        lt=0.5,
        description="Assumed share ε of pairs with swapped labels.",
    )
    # Excluded at its default, so that results from before this field keep their keys.
    negative_dose: float = Field(
        default=1.0,
        ge=0,
        exclude_if=lambda dose: dose == 1.0,
        description="Factor on the push on rejected tokens.",
    )

    @model_validator(mode="after")
    def _one_dose(self) -> Self:
        if self.designed_dose is not None and self.negative_dose != 1:
            raise ConfigError(
                "objective.negative_dose",
                self.negative_dose,
                "designed_dose chooses the dose; leave one of the two out",
            )
        return self


class DPO(PairObjective[DPOConfig]):
    """`φ = −(1 − ε) log σ(β d) − ε log σ(−β d)`, `d = h_c − h_r`, h the response's log-ratio.

    Rafailov et al., arXiv 2305.18290, eq. 7; smoothed, it is conservative DPO (Mitchell, 2023).
    Force (Ren & Sutherland, arXiv 2407.10490, eq. 8): `c_l = +β(1 − ε − σ(β d))` on chosen and
    its negative on rejected tokens, divided by the step's pairs. With ε = 0 the response-level
    dynamic learning rate is β(1 − σ) and keeps its sign; with ε > 0 it changes sign where σ passes
    1 − ε.
    """

    @property
    def reward_scale(self) -> float:
        """β: the implicit reward is β h."""
        return self.config.beta

    def pair_loss(self, chosen: Pairs, rejected: Pairs) -> Pairs:
        """−(1 − ε) log σ(β d) − ε log σ(−β d)."""
        rejected = torch.lerp(rejected.detach(), rejected, self.config.negative_dose)
        margin, noise = self.config.beta * (chosen - rejected), self.config.label_smoothing
        return -(1 - noise) * F.logsigmoid(margin) - noise * F.logsigmoid(-margin)

    def pair_rates(self, chosen: Pairs, rejected: Pairs) -> tuple[Pairs, Pairs]:
        """β(1 − ε − σ(β d)) on both sides, times the dose on the rejected one."""
        margin, noise = self.config.beta * (chosen - rejected), self.config.label_smoothing
        # 1 − ε − σ without the subtraction from 1, which loses its digits at large margins.
        pull = (1 - noise) * torch.sigmoid(-margin) - noise * torch.sigmoid(margin)
        return self.config.beta * pull, self.config.negative_dose * self.config.beta * pull


class RobustDPOConfig(PairConfig):
    """Settings of robust direct preference optimisation."""

    name: Literal["robust_dpo"] = "robust_dpo"
    beta: float = Field(
        default=0.1, gt=0, description="Inverse temperature β of the implicit reward."
    )
    label_smoothing: float = Field(
        default=0.1,
        ge=0,
        lt=0.5,
        description="Known share ε of pairs with swapped labels.",
    )


class RobustDPO(PairObjective[RobustDPOConfig]):
    """`φ = (−(1 − ε) log σ(β d) + ε log σ(−β d)) / (1 − 2ε)`: unbiased under flipped labels.

    Chowdhury et al., arXiv 2403.00409. Force: `c_l = ±β((1 − ε)(1 − σ) + εσ)/(1 − 2ε)`,
    plus on chosen and minus on rejected tokens: it never falls below βε/(1 − 2ε).
    """

    @property
    def reward_scale(self) -> float:
        """β: the implicit reward is β h."""
        return self.config.beta

    def pair_loss(self, chosen: Pairs, rejected: Pairs) -> Pairs:
        """(−(1 − ε) log σ(β d) + ε log σ(−β d)) / (1 − 2ε)."""
        margin, noise = self.config.beta * (chosen - rejected), self.config.label_smoothing
        clean, flipped = -F.logsigmoid(margin), -F.logsigmoid(-margin)
        return ((1 - noise) * clean - noise * flipped) / (1 - 2 * noise)

    def pair_rates(self, chosen: Pairs, rejected: Pairs) -> tuple[Pairs, Pairs]:
        """β((1 − ε)(1 − σ) + εσ)/(1 − 2ε) on both sides."""
        margin, noise = self.config.beta * (chosen - rejected), self.config.label_smoothing
        pull = (1 - noise) * torch.sigmoid(-margin) + noise * torch.sigmoid(margin)
        rate = self.config.beta * pull / (1 - 2 * noise)
        return rate, rate
