"""Identity preference optimisation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dynolab.objectives.pairs import Answers, PairConfig, PairObjective, Pairs


class IPOConfig(PairConfig):
    """Settings of identity preference optimisation."""

    name: Literal["ipo"] = "ipo"
    beta: float = Field(
        default=0.1,
        gt=0,
        description="Strength of the regularisation, τ in the paper; target 1/(2β).",
    )
    normalise: Literal["sum", "mean"] = Field(
        default="sum",
        description="Log-ratios summed over a response's tokens (the paper's equation), or "
        "averaged over them (TRL's form), which changes the scale of β.",
    )


class IPO(PairObjective[IPOConfig]):
    """`φ = (d − 1/(2β))²`, `d = h_c − h_r`, h a response's log-ratio, summed or averaged.

    Azar et al., arXiv 2310.12036, eq. 17. Force: `c_l = ±2(1/(2β) − d)`, plus on chosen and minus
    on rejected tokens, divided by the pairs (and by n where averaged). It changes sign once the
    margin is reached: then chosen falls and rejected rises.
    """

    @property
    def averages(self) -> bool:
        """Whether log-ratios are averaged over tokens."""
        return self.config.normalise == "mean"

    def pair_loss(self, chosen: Answers, rejected: Answers) -> Pairs:
        """(d − 1/(2β))²."""
        higher, lower = (side.mean if self.averages else side.ratio for side in (chosen, rejected))
        return (1 / (2 * self.config.beta) - (higher - lower)).square()
