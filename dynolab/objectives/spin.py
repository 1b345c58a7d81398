"""Self-play finetuning: the policy learns to prefer the data's answers to its own."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dynolab.objectives.dpo import DPO, DPOConfig
from dynolab.objectives.pairs import PairConfig


class SPINConfig(PairConfig):
    """Settings of self-play finetuning (Chen et al., arXiv 2401.01335).

    A pair is a row's own answer against one sampled from the policy at the beginning of an
    iteration, which is also the reference. An iteration is a rollout of a training on prompts:
    `updates_per_rollout` steps.
    """

    name: Literal["spin"] = "spin"
    beta: float = Field(default=0.1, gt=0, description="The paper's λ: inverse temperature.")


def build_spin(config: SPINConfig) -> DPO:
    """Eq. 4.7 with the logistic loss is DPO's loss; only data and reference differ."""
    return DPO(DPOConfig(beta=config.beta))
