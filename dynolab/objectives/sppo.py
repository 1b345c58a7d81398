"""Self-play preference optimisation, with hard labels or with estimated preferences."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from dynolab.errors import ConfigError
from dynolab.objectives.pairs import Answers, PairConfig, PairObjective, Pairs


class SPPOConfig(PairConfig):
    """Settings of self-play preference optimisation (Wu et al., arXiv 2405.00675).

    The reference is π_t, the policy at the beginning of an iteration. In a training on prompts an
    iteration is a rollout, `updates_per_rollout` steps on pairs of the policy's own answers; a
    training on rows is one iteration, and π_t is its initial policy.
    """

    name: Literal["sppo"] = "sppo"
    beta: float = Field(
        default=0.001, gt=0, description="1/η: a side's log-ratio is driven to (P − 1/2)/β."
    )
    # Excluded at its default, so that results from before this field keep their keys.
    labels: Literal["hard", "soft"] = Field(
        default="hard",
        exclude_if=lambda labels: labels == "hard",
        description="P, the probability that an answer is preferred to one of the policy. hard: "
        "1 for chosen, 0 for rejected answers. soft: the row's `wins`; for sampled answers, the "
        "share of their group that they beat by reward, ties counting half.",
    )


class SPPO(PairObjective[SPPOConfig]):
    """`φ = (h_c − (P_c − 1/2)/β)² + (h_r − (P_r − 1/2)/β)²`, h a response's log-ratio.

    Wu et al., arXiv 2405.00675, eq. 4.7 on a pair, β = 1/η: P = P(y ≻ π_t | x), and h is taken
    against π_t. With P_c = 1 and P_r = 0 it is TRL's `sppo_hard`. Force:
    `c_l = 2((P − 1/2)/β − h)` of the token's own response, divided by the pairs: the two sides are
    independent, so chosen is held up where a loss on the margin would let it fall.
    """

    def pair_loss(self, chosen: Answers, rejected: Answers) -> Pairs:
        """The squared distances from the targets."""
        goals = (1.0, 0.0) if self.config.labels == "hard" else (chosen.wins, rejected.wins)
        total = torch.zeros_like(chosen.ratio)
        for answers, wins in zip((chosen, rejected), goals, strict=True):
            if wins is None:
                raise ConfigError(
                    "objective.labels",
                    "soft",
                    "the pairs have no `wins`, the probability of each answer to be preferred to "
                    "one of the policy; give them, or set labels: hard",
                )
            total = total + (answers.ratio - (wins - 0.5) / self.config.beta).square()
        return total


def reads_wins(config: object) -> bool:
    """Whether an objective of this config reads the pairs' `wins`."""
    return isinstance(config, SPPOConfig) and config.labels == "soft"
