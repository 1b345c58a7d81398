"""Group relative policy optimisation, with ratios per token or per sequence."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.objectives.base import Objective
from dynolab.objectives.clipping import (
    ClippedConfig,
    Surrogate,
    Tokens,
    advantages,
    aggregation_weights,
    clipped,
    divergence,
    report,
)

SAPO_TEMPERATURES = (1.0, 1.05)
"""τ of sapo where the advantage is positive, and elsewhere: the paper's, and TRL's."""
VESPO_GAMMA = ((2.0, 3.0), (3.0, 2.0))
"""k and λ of vespo, each for advantages that are not negative, and for others: TRL's."""


class GRPOConfig(ClippedConfig):
    """Settings of group relative policy optimisation."""

    name: Literal["grpo"] = "grpo"
    # Fields that are excluded at their defaults let older results keep their keys.
    surrogate: Surrogate = Field(
        default="clipped",
        exclude_if=lambda surrogate: surrogate == "clipped",
        description="What stands for the advantage times the ratio: clipped as in PPO; cispo: the "
        "ratio, at most clip_high, weighs log π; sapo: a soft gate in place of the clip; vespo: a "
        "gamma weight of the response's ratio weighs log π. TRL aggregates cispo and vespo as "
        "dapo, sapo as grpo.",
    )
    ratio: Literal["token", "sequence", "product"] = Field(
        default="token",
        description="Importance ratio of each token, or of the whole response: the geometric mean "
        "over its tokens (sequence, GSPO), or the ratio of the responses' probabilities (product, "
        "RLOO; with aggregation: grpo it is TRL's loss).",
    )
    entropy: float = Field(
        default=0.0,
        ge=0,
        exclude_if=lambda entropy: not entropy,
        description="Weight γ of the entropy of each token's distribution, which is raised.",
    )


class GRPO(Objective):
    """`L = Σ_l w_l [−S_l + β k3_l + γ ρ_l log π_old,l]`, ρ the ratio of policy to old policy.

    S is the surrogate, by default `min(ρÂ, clip(ρ)Â)`; with sg the value without gradient,

    - `cispo`: `sg(min(ρ, ε_high)) Â log π` (MiniMax-M1, arXiv 2506.13585);
    - `sapo`: `4/τ σ(τ(ρ − 1)) Â`, τ by the sign of Â (arXiv 2511.20347);
    - `vespo`: `sg(e^λ w^k e^{−λw}) Â log π`, w the ratio of the responses' probabilities, k and λ
      by the sign of Â (arXiv 2602.10693).

    Shao et al., arXiv 2402.03300, eq. 3, whose `w_l = 1/(G|y|)` is the default; denominators 1/w
    of DAPO (arXiv 2503.14476) and Dr. GRPO (arXiv 2503.20783); sequence ratios of GSPO (arXiv
    2507.18071). Force: `c_l = w_l [Â_l ρ_l 1[live] + β(e^{ref − π} − 1) − γ ρ_l log π_old,l]`, so
    that `G_l = c_l (π_T − e)/T` with T the temperature of the sampling. With a sequence's ratio s,
    `∂s/∂log π_l = s/n`: its tokens share the mean of `w Â s 1[live]` over the sequence.

    The last term estimates the entropy bonus from the sampled tokens: at the sampling policy its
    mean gradient is that of −γH, as `∇H = −E[log π ∇ log π]`. Its ratios are always per token.

    The chosen side of a batch is the completions with Â ≥ 0, the rejected side the others.
    """

    def __init__(self, config: GRPOConfig) -> None:
        self.config = config

    @property
    def needs_reference(self) -> bool:
        """Whether the loss or the rewards include the divergence from the reference."""
        return self.config.reads_reference

    def _ratio(self, logps: Tokens, batch: TokenBatch) -> Tokens:
        """ρ of every token; with sequence ratios, all tokens of a sequence have the same one."""
        change = logps - self._old(logps, batch)
        if self.config.ratio != "token":
            change = batch.sequence_sum(change)
            if self.config.ratio == "sequence":
                change = change / batch.sequence_length
            change = change[batch.sequence]
        return change.exp()

    def _old(self, logps: Tokens, batch: TokenBatch) -> Tokens:
        """log π_old of every token: the policy's own where none is given."""
        return logps.detach() if batch.old is None else batch.old

    def _held(self, logps: Tokens, batch: TokenBatch) -> Tokens | None:
        """The factor of log π that cispo and vespo hold constant; None for other surrogates."""
        if self.config.surrogate == "cispo":
            return self._ratio(logps, batch).clamp(max=self.config.clip_high)
        if self.config.surrogate == "vespo":
            change = (logps - self._old(logps, batch)).clamp(-20, 20)
            change = batch.sequence_sum(change).clamp(math.log(1e-8), 20)[batch.sequence]
            positive = advantages(batch) >= 0
            power, decay = (_by_sign(positive, pair, logps) for pair in VESPO_GAMMA)
            return (decay + power * change - decay * change.exp()).exp()
        return None

    def _moving_loss(self, logps: Tokens, batch: TokenBatch) -> Float[Tensor, ""]:
        """The loss without the part whose factor is held."""
        advantage, ratio = advantages(batch), self._ratio(logps, batch)
        value = torch.zeros_like(logps)
        if self.config.surrogate == "clipped":
            value = value - clipped(self.config, ratio, advantage)
        if self.config.surrogate == "sapo":
            heat = _by_sign(advantage > 0, SAPO_TEMPERATURES, logps)
            value = value - 4 / heat * torch.sigmoid(heat * (ratio - 1)) * advantage
        if self.config.kl:
            value = value + self.config.kl * divergence(logps, batch)
        if self.config.entropy:
            old = self._old(logps, batch)
            value = value + self.config.entropy * (logps - old).exp() * old
        return (aggregation_weights(self.config, batch, logps) * value).sum()

    def loss(self, logps: Tokens, batch: TokenBatch) -> Float[Tensor, ""]:
        """The batch's share of the step's loss."""
        loss = self._moving_loss(logps, batch)
        if (held := self._held(logps.detach(), batch)) is not None:
            weight = aggregation_weights(self.config, batch, logps)
            loss = loss - (weight * held * advantages(batch) * logps).sum()
        return loss

    def token_weights(self, logps: Tokens, batch: TokenBatch) -> Tokens:
        """Minus the slope of what moves, and the held factor times the advantage."""
        weights: Tensor = -torch.func.grad(self._moving_loss)(logps, batch)
        if (held := self._held(logps, batch)) is not None:
            weight = aggregation_weights(self.config, batch, logps)
            weights = weights + weight * held * advantages(batch)
        return weights

    @torch.no_grad()
    def metrics(self, logps: Tokens, batch: TokenBatch) -> dict[str, Float[Tensor, ""]]:
        """Ratio, clipped share, log-probability, advantage and KL, as means over tokens."""
        named = report(self.config, logps, self._ratio(logps, batch), batch)
        if self.config.surrogate != "clipped":
            del named["train/clip_fraction"]
        return named


def _by_sign(condition: Bool[Tensor, " tokens"], pair: tuple[float, float], like: Tokens) -> Tokens:
    """The first of two numbers where a condition holds, else the second, as precise as `like`."""
    return torch.full_like(like, pair[1]).masked_fill(condition, pair[0])
