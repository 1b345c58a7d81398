"""SimKO: the likeliest alternatives share a correct token's gradient where the policy is unsure."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from dynolab.data.batches import TokenBatch, TopTokens
from dynolab.errors import ConfigError
from dynolab.objectives.base import Objective
from dynolab.objectives.clipping import (
    ClippedConfig,
    Tokens,
    advantages,
    aggregation_weights,
    clipped,
    divergence,
    live,
    reference_gap,
    report,
)

Targets = Float[Tensor, "tokens targets"]

_TINY = 1e-8
"""Keeps sg(r)/sg(ρ_k) finite if an alternative has lost all its probability."""


class SimKOConfig(ClippedConfig):
    """Settings of SimKO; the defaults are the paper's."""

    name: Literal["simko"] = "simko"
    share: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="α: the part of a correct token's gradient that is shared.",
    )
    ranks: int = Field(default=3, ge=1, description="K: likeliest tokens that share it.")
    gate_quantile: float = Field(
        default=0.8,
        ge=0,
        lt=1,
        description="Only a response's tokens above this entropy quantile share.",
    )
    penalty: float = Field(
        default=1.1,
        ge=1,
        description="Factor on the advantage of a wrong response's likeliest tokens.",
    )


class SimKO(Objective):
    """GRPO's loss with γ in place of the ratio: a dense objective over the likeliest tokens.

    arXiv 2510.14807. With r the response token's ratio, ρ_k that of the rank-k token, w = 1 where
    the entropy exceeds its response's quantile and sg the value without gradient, where Â > 0:
    `γ = (1 − αw) r + (αw/K) Σ_k sg(r)/(sg(ρ_k) + 1e-8) ρ_k`; where Â < 0, γ = r and the advantage
    of gated tokens that are the likeliest themselves is multiplied with the penalty. Then
    `L = Σ_l w_l [−min(γÂ, clip(γ)Â) + β k3]` as in `grpo.py`.

    Force: `G = Âr(π − [(1 − αw) e_y + (αw/K) Σ_k e_k])/(T·norm)` where unclipped: c is
    `Âγ'` with `γ' = (1 − αw) r` for the response token and `(αw/K) r ρ_k/(ρ_k + 1e-8)` for each
    alternative. The likeliest tokens and the entropy are those of the policy that sampled, so that
    ρ_k compares a token with itself, which a new ranking under the current policy would not.
    """

    dense: ClassVar[bool] = True

    def __init__(self, config: SimKOConfig) -> None:
        self.config = config

    @property
    def needs_reference(self) -> bool:
        """Whether the loss or the rewards include the divergence from the reference."""
        return self.config.reads_reference

    def _top(self, batch: TokenBatch) -> TopTokens:
        ranks = 0 if batch.top is None else batch.top.token.shape[1]
        if batch.top is None or ranks != self.config.ranks or batch.old is None:
            raise ConfigError(
                "objective.ranks",
                self.config.ranks,
                f"the batch has {ranks} likeliest tokens per position; sample with this many",
            )
        return batch.top

    def _ratios(self, logps: Targets, batch: TokenBatch) -> Targets:
        """r in the first column, then ρ_k."""
        top = self._top(batch)
        assert batch.old is not None
        return (logps - torch.cat([batch.old[:, None], top.logp], dim=1)).exp()

    def _gate(self, batch: TokenBatch) -> Tokens:
        """w: one where a token's entropy exceeds its response's quantile."""
        entropy = self._top(batch).entropy
        bounds = [
            torch.quantile(entropy[batch.sequence == number], self.config.gate_quantile)
            for number in range(len(batch.side))
        ]
        return (entropy > torch.stack(bounds)[batch.sequence]).to(entropy)

    def _shared(self, batch: TokenBatch) -> Tokens:
        """αw on tokens that are pushed up, zero on all others."""
        return self.config.share * self._gate(batch) * (advantages(batch) > 0)

    def _advantage(self, batch: TokenBatch) -> Tokens:
        """Â, with the penalty on gated tokens of wrong responses that are the likeliest."""
        advantage = advantages(batch)
        likeliest = batch.token == self._top(batch).token[:, 0]
        hard = (advantage < 0) & likeliest & (self._gate(batch) > 0)
        return torch.where(hard, self.config.penalty * advantage, advantage)

    def _mixed(self, ratios: Targets, shared: Tokens) -> Tokens:
        """The mixed ratio γ of every token."""
        own, others = ratios[:, 0], ratios[:, 1:]
        scale = own.detach()[:, None] / (others.detach() + _TINY)
        return (1 - shared) * own + shared * (scale * others).mean(dim=1)

    def loss(self, logps: Targets, batch: TokenBatch) -> Float[Tensor, ""]:
        """The batch's share of the step's loss."""
        ratio = self._mixed(self._ratios(logps, batch), self._shared(batch))
        value = -clipped(self.config, ratio, self._advantage(batch))
        if self.config.kl:
            value = value + self.config.kl * divergence(logps[:, 0], batch)
        return (aggregation_weights(self.config, batch, logps[:, 0]) * value).sum()

    def token_weights(self, logps: Targets, batch: TokenBatch) -> Targets:
        """c of the response token and of each likeliest token (see the class)."""
        ratios, shared, advantage = (
            self._ratios(logps, batch),
            self._shared(batch),
            self._advantage(batch),
        )
        own, others = ratios[:, :1], ratios[:, 1:]
        part = shared[:, None] / self.config.ranks
        slope = torch.cat([(1 - shared[:, None]) * own, part * own * others / (others + _TINY)], 1)
        weight = aggregation_weights(self.config, batch, logps[:, 0])
        moving = live(self.config, self._mixed(ratios, shared), advantage)
        rate = (weight * advantage * moving)[:, None] * slope
        if self.config.kl:
            drift = weight * self.config.kl * torch.expm1(reference_gap(logps[:, 0], batch))
            rate = torch.cat([rate[:, :1] + drift[:, None], rate[:, 1:]], 1)
        return rate

    @torch.no_grad()
    def metrics(self, logps: Targets, batch: TokenBatch) -> dict[str, Float[Tensor, ""]]:
        """GRPO's metrics, with the mixed ratio."""
        ratio = self._mixed(self._ratios(logps, batch), self._shared(batch))
        return report(self.config, logps[:, 0], ratio, batch)
