"""Self-play preference optimisation with hard labels."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dynolab.objectives.pairs import PairConfig, PairObjective, Pairs


class SPPOConfig(PairConfig):
    """Settings of self-play preference optimisation."""

    name: Literal["sppo"] = "sppo"
    beta: float = Field(0.001, gt=0, description="Each side's log-ratio is driven to ±1/(2β).")


class SPPO(PairObjective[SPPOConfig]):
    """`φ = (h_c − 1/(2β))² + (h_r + 1/(2β))²`, h a response's log-ratio; TRL's `sppo_hard`.

    Wu et al., arXiv 2405.00675, eq. 4.7 with win probabilities one and zero and β = 1/η. Force:
    `c_l = 2(1/(2β) − h_c)` on chosen and `−2(1/(2β) + h_r)` on rejected tokens, over pairs: the
    sides do not know of each other, so chosen is held up where a margin alone would let it fall.
    """

    @property
    def reward_scale(self) -> float:
        """β."""
        return self.config.beta

    def pair_loss(self, chosen: Pairs, rejected: Pairs) -> Pairs:
        """(h_c − 1/(2β))² + (h_r + 1/(2β))²."""
        goal = 0.5 / self.config.beta
        return (chosen - goal).square() + (rejected + goal).square()

    def pair_rates(self, chosen: Pairs, rejected: Pairs) -> tuple[Pairs, Pairs]:
        """2(1/(2β) − h_c) on chosen, 2(1/(2β) + h_r) on rejected."""
        goal = 0.5 / self.config.beta
        return 2 * (goal - chosen), 2 * (goal + rejected)
