"""Clipped policy gradients on sampled groups: GRPO's, and SimKO's."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from dynolab.data.batches import TokenBatch, TopTokens
from dynolab.errors import ConfigError
from dynolab.objectives.advantage_rules import covariances
from dynolab.objectives.base import Objective
from dynolab.objectives.policy_gradient import (
    ClippedConfig,
    Surrogate,
    Tokens,
    advantages,
    aggregation_weights,
    clipped,
    divergence,
    live,
    reference_gap,
    report,
)
from dynolab.objectives.registration import register

SAPO_TEMPERATURES = (1.0, 1.05)
"""τ of sapo where the advantage is positive, and elsewhere: the paper's, and TRL's."""
VESPO_GAMMA = ((2.0, 3.0), (3.0, 2.0))
"""k and λ of vespo, each for advantages that are not negative, and for others: TRL's."""


class KLCovConfig(BaseModel):
    """Settings of KL-Cov; the defaults are the paper's for a model of 7B weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    share: float = Field(
        default=2e-3,
        gt=0,
        le=1,
        description="Of all tokens, how many are held to the policy that sampled, at least one.",
    )
    weight: float = Field(default=1.0, gt=0, description="Weight of their divergence from it.")


class GroupDoseConfig(BaseModel):
    """Settings of the dose that forces choose for the answers of a step's groups."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    protect: Literal["right", "entropy"] = Field(
        default="right",
        description="What a step lowers not at all, to first order. right: the mean log π of the "
        "answers that it pushes up, by weaker pushes on the others. entropy: the mean entropy of "
        "all tokens, by weaker pushes on any of them; needs per: token.",
    )
    per: Literal["batch", "group", "token"] = Field(
        default="batch",
        description="What has its own dose: the step's batch, each prompt's group, or each token.",
    )

    @model_validator(mode="after")
    def _check_per(self) -> GroupDoseConfig:
        if self.protect == "entropy" and self.per != "token":
            remedy = "protect: entropy weakens pushes of either sign; set per: token"
            raise ConfigError("designed_dose.per", self.per, remedy)
        return self


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
    kl_cov: KLCovConfig | None = Field(
        default=None,
        exclude_if=lambda held: held is None,
        description="Holds the tokens whose log π and advantage are high together to the policy "
        "that sampled them, against a falling entropy; acts from the second update of a rollout.",
    )
    designed_dose: GroupDoseConfig | None = Field(
        default=None,
        exclude_if=lambda designed: designed is None,
        description="In a training, each step's pushes are the largest with which it to first "
        "order lowers neither the right answers nor, if so set, the entropy.",
    )


@register(GRPOConfig, "GRPO")
class GRPO(Objective):
    """`L = Σ_l w_l [−S_l + β k3_l + γ ρ_l log π_old,l + a_l (ρ_l − 1 − log ρ_l)]`.

    ρ is the ratio of policy to old policy.

    S is the surrogate, by default `min(ρÂ, clip(ρ)Â)`; with sg the value without gradient,

    - `cispo`: `sg(min(ρ, ε_high)) Â log π` (MiniMax-M1, arXiv 2506.13585);
    - `sapo`: `4/τ σ(τ(ρ − 1)) Â`, τ by the sign of Â (arXiv 2511.20347);
    - `vespo`: `sg(e^λ w^k e^{−λw}) Â log π`, w the ratio of the responses' probabilities, k and λ
      by the sign of Â (arXiv 2602.10693).

    Shao et al., arXiv 2402.03300, eq. 3, whose `w_l = 1/(G|y|)` is the default; denominators 1/w
    of DAPO (arXiv 2503.14476) and Dr. GRPO (arXiv 2503.20783); sequence ratios of GSPO (arXiv
    2507.18071). Force: `c_l = w_l [Â_l ρ_l 1[live] + β(e^{ref − π} − 1) − γ ρ_l log π_old,l −
    a_l (ρ_l − 1)]`, so that `G_l = c_l (π_T − e)/T` with T the temperature of the sampling. With a
    sequence's ratio s, `∂s/∂log π_l = s/n`: its tokens share the mean of `w Â s 1[live]` over the
    sequence.

    The third term estimates the entropy bonus from the sampled tokens: at the sampling policy its
    mean gradient is that of −γH, as `∇H = −E[log π ∇ log π]`. Its ratios are always per token.

    KL-Cov (Cui et al., arXiv 2505.22617): a is its weight on the tokens of a step with the highest
    covariance (`covariances`), 0 on others. Its term estimates `KL(π_old‖π)`; the authors' code has
    |log ρ|, whose slope at ρ = 1 is the sign of a rounding error.

    The chosen side of a batch is the completions with Â ≥ 0, the rejected side the others. Where
    the batch has doses, the gradient through its tokens is multiplied by them.
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

    def _constant_factor(self, logps: Tokens, batch: TokenBatch) -> Tokens | None:
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
        if batch.anchor is not None:
            change = logps - self._old(logps, batch)
            value = value + batch.anchor * (torch.expm1(change) - change)
        return (aggregation_weights(self.config, batch, logps) * value).sum()

    def loss(self, logps: Tokens, batch: TokenBatch) -> Float[Tensor, ""]:
        """The batch's share of the step's loss."""
        logps = self.dosed(logps, batch)
        loss = self._moving_loss(logps, batch)
        if (factor := self._constant_factor(logps.detach(), batch)) is not None:
            weight = aggregation_weights(self.config, batch, logps)
            loss = loss - (weight * factor * advantages(batch) * logps).sum()
        return loss

    def token_weights(self, logps: Tokens, batch: TokenBatch) -> Tokens:
        """Minus the slope of what moves, and the held factor times the advantage."""
        weights: Tokens = -torch.func.grad(self._moving_loss)(logps, batch)
        if (factor := self._constant_factor(logps, batch)) is not None:
            weight = aggregation_weights(self.config, batch, logps)
            weights = weights + weight * factor * advantages(batch)
        doses = self.doses(logps, batch)
        return weights if doses is None else weights * doses

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


def anchors(held: KLCovConfig, advantage: Tokens, logps: Tokens) -> Tokens:
    """`batch.anchor` of KL-Cov: its weight on the tokens with the highest covariance.

    **Arguments:** of every token of a step, `advantage`, and `logps` of the policy that sampled.
    """
    highest = covariances(advantage, logps).topk(max(1, int(held.share * len(logps)))).indices
    return torch.zeros_like(advantage).index_fill(0, highest, held.weight)


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


@register(SimKOConfig, "SimKO")
class SimKO(Objective):
    """GRPO's loss with γ in place of the ratio: a dense objective over the likeliest tokens.

    arXiv 2510.14807. With r the response token's ratio, ρ_k that of the rank-k token, w = 1 where
    the entropy exceeds its response's quantile and sg the value without gradient, where Â > 0:
    `γ = (1 − αw) r + (αw/K) Σ_k sg(r)/(sg(ρ_k) + 1e-8) ρ_k`; where Â < 0, γ = r and the advantage
    of gated tokens that are the likeliest themselves is multiplied with the penalty. Then
    `L = Σ_l w_l [−min(γÂ, clip(γ)Â) + β k3]` as of `GRPO`.

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
        realised, others = ratios[:, 0], ratios[:, 1:]
        scale = realised.detach()[:, None] / (others.detach() + _TINY)
        return (1 - shared) * realised + shared * (scale * others).mean(dim=1)

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
        realised, others = ratios[:, :1], ratios[:, 1:]
        part = shared[:, None] / self.config.ranks
        slope = torch.cat(
            [(1 - shared[:, None]) * realised, part * realised * others / (others + _TINY)], 1
        )
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
