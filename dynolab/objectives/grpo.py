"""Group relative policy optimisation, with ratios per token or per sequence."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch
from dynolab.objectives.clipping import (
    ClippedConfig,
    Tokens,
    advantages,
    aggregation_weights,
    clipped,
    divergence,
    divergence_rate,
    live,
    report,
)


class GRPOConfig(ClippedConfig):
    """Settings of group relative policy optimisation."""

    name: Literal["grpo"] = "grpo"
    ratio: Literal["token", "sequence"] = Field(
        default="token",
        description="Importance ratio of each token, or of the whole response: the geometric mean "
        "over its tokens (GSPO).",
    )
    entropy: float = Field(
        default=0.0,
        ge=0,
        exclude_if=lambda entropy: not entropy,
        description="Weight γ of the entropy of each token's distribution, which is raised.",
    )


class GRPO:
    """`L = Σ_l w_l [−min(ρ_l Â_l, clip(ρ_l) Â_l) + β k3_l + γ ρ_l log π_old,l]`.

    ρ is the ratio of policy to old policy.

    Shao et al., arXiv 2402.03300, eq. 3, whose `w_l = 1/(G|y|)` is the default; denominators 1/w
    of DAPO (arXiv 2503.14476) and Dr. GRPO (arXiv 2503.20783); sequence ratios of GSPO (arXiv
    2507.18071). Force: `c_l = w_l [Â_l ρ_l 1[live] + β(e^{ref − π} − 1) − γ ρ_l log π_old,l]`, so
    that `G_l = c_l (π_T − e)/T` with T the temperature of the sampling. With a sequence's ratio s,
    `∂s/∂log π_l = s/n`: its tokens share the mean of `w Â s 1[live]` over the sequence.

    The last term estimates the entropy bonus from the sampled tokens: at the sampling policy its
    mean gradient is that of −γH, as `∇H = −E[log π ∇ log π]`. Its ratios are always per token.

    The chosen side of a batch is the completions with Â ≥ 0, the rejected side the others.
    """

    sides: ClassVar[tuple[int, ...]] = (CHOSEN, REJECTED)
    dense: ClassVar[bool] = False

    def __init__(self, config: GRPOConfig) -> None:
        self.config = config

    @property
    def needs_reference(self) -> bool:
        """Whether the loss includes the divergence from the reference."""
        return self.config.kl > 0

    def _ratio(self, logps: Tokens, batch: TokenBatch) -> Tokens:
        """ρ of every token; with sequence ratios, all tokens of a sequence have the same one."""
        change = logps - self._old(logps, batch)
        if self.config.ratio == "sequence":
            change = self._spread(change, batch)
        return change.exp()

    def _old(self, logps: Tokens, batch: TokenBatch) -> Tokens:
        """log π_old of every token: the policy's own where none is given."""
        return logps.detach() if batch.old is None else batch.old

    def _spread(self, values: Tokens, batch: TokenBatch) -> Tokens:
        """The mean over each sequence, repeated for its tokens."""
        return (batch.sequence_sum(values) / batch.sequence_length)[batch.sequence]

    def loss(self, logps: Tokens, batch: TokenBatch) -> Float[Tensor, ""]:
        """The batch's share of the step's loss."""
        value = -clipped(self.config, self._ratio(logps, batch), advantages(batch))
        if self.config.kl:
            value = value + self.config.kl * divergence(logps, batch)
        if self.config.entropy:
            old = self._old(logps, batch)
            value = value + self.config.entropy * (logps - old).exp() * old
        return (aggregation_weights(self.config, batch, logps) * value).sum()

    def token_weights(self, logps: Tokens, batch: TokenBatch) -> Tokens:
        """c_l = w_l [Â_l ρ_l 1[live] + β(e^{ref − π} − 1) − γ ρ_l log π_old,l]."""
        advantage, ratio = advantages(batch), self._ratio(logps, batch)
        weight = aggregation_weights(self.config, batch, logps)
        rate = weight * advantage * ratio * live(self.config, ratio, advantage)
        if self.config.ratio == "sequence":
            rate = self._spread(rate, batch)
        if self.config.kl:
            rate = rate + weight * self.config.kl * divergence_rate(logps, batch)
        if self.config.entropy:
            old = self._old(logps, batch)
            rate = rate - weight * self.config.entropy * (logps - old).exp() * old
        return rate

    @torch.no_grad()
    def metrics(self, logps: Tokens, batch: TokenBatch) -> dict[str, Float[Tensor, ""]]:
        """Ratio, clipped share, log-probability, advantage and KL, as means over tokens."""
        return report(self.config, logps, self._ratio(logps, batch), batch)
