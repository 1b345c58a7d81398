"""Rules that rewrite a group's advantages token by token, before the training reads them."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.errors import ConfigError
from dynolab.likelihood.entropy_scores import EntropyScores, entropy_scores
from dynolab.likelihood.token_logps import token_logps

Tokens = Float[Tensor, "tokens"]

CLIPPING = ("clip_b", "clip_v", "clip_cov")
"""Rules that compare each token with all of the batch; the others look at one group at a time."""

READ_BY = {
    "p": ("thr",),
    "deviations": ("clip_b", "clip_v"),
    "share": ("clip_cov",),
    "covariance": ("clip_cov",),
}
"""The rules that read a setting which others refuse."""


class AdvantageRuleConfig(BaseModel):
    """How a group's advantages are rewritten token by token before training.

    A name alone stands for the rule with its defaults.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _of_its_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    name: Literal[
        "none", "nthr", "thr", "positives_only", "random_tokens", "clip_b", "clip_v", "clip_cov"
    ] = Field(
        default="none",
        description="nthr: scales tokens of wrong answers that drag right ones down. Its controls: "
        "positives_only drops the push of wrong answers, random_tokens scales as many tokens at "
        "random. thr: scales tokens that lift right answers by 1 + p, those that drag them down by "
        "1 − p, and drops those that do little of either. Against a falling entropy, clip_b and "
        "clip_v drop pushes on wrong answers' tokens that lower it most, clip_cov some of the "
        "tokens whose log π and advantage are high together.",
    )
    threshold: float = Field(
        default=1.0,
        ge=0,
        description="β of nthr and thr: a larger one scales fewer tokens. Also used by "
        "random_tokens.",
    )
    factor: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Factor on scaled tokens, or on those that thr, clip_b, clip_v and clip_cov "
        "drop; default 2|0.5 − pass rate|, or 0.",
    )
    # Fields that are excluded at their defaults let older results keep their keys.
    p: float = Field(
        default=0.1,
        ge=-1,
        le=1,
        exclude_if=lambda p: p == 0.1,
        description="Strength of thr: above 0 it favours right answers, below 0 exploration.",
    )
    deviations: float = Field(
        default=2.5,
        ge=0,
        exclude_if=lambda deviations: deviations == 2.5,
        description="μ of clip_b and clip_v: standard deviations of the score beyond which they "
        "drop a token.",
    )
    share: float = Field(
        default=2e-4,
        gt=0,
        le=1,
        exclude_if=lambda share: share == 2e-4,
        description="Of all tokens, how many clip_cov drops, at least one.",
    )
    covariance: tuple[float, float] = Field(
        default=(1.0, 5.0),
        exclude_if=lambda bounds: bounds == (1.0, 5.0),
        description="Bounds of the covariance between which clip_cov draws tokens to drop.",
    )

    @model_validator(mode="after")
    def _check_read(self) -> AdvantageRuleConfig:
        for field, rules in READ_BY.items():
            value = getattr(self, field)
            if value != type(self).model_fields[field].default and self.name not in rules:
                remedy = f"{self.name} does not read it, only {' and '.join(rules)}; leave it out"
                raise ConfigError(f"advantage_rule.{field}", value, remedy)
        if self.covariance[0] >= self.covariance[1]:
            raise ConfigError(
                "advantage_rule.covariance", self.covariance, "the first must be below the second"
            )
        return self


def rewrite_advantages(
    config: AdvantageRuleConfig,
    batch: TokenBatch,
    correct: Bool[Tensor, " sequences"],
    logits: Float[Tensor, "tokens vocabulary"],
    hidden: Float[Tensor, "tokens features"],
    *,
    seed: int = 0,
) -> Tokens:
    """Applies a rule to the batch's advantages; no sign changes.

    Group by group, where s_k is the influence of token k on the right answers (`influence`) and
    τ = β · (the least mean influence of a right completion's own tokens); groups that are all right
    or all wrong are unchanged:

    - NTHR (Deng et al., arXiv 2505.18830): tokens of a wrong completion with s_k > τ keep
      2|0.5 − p| of their advantage, p the group's pass rate.
    - THR (Deng et al., arXiv 2510.03669): with THR_k = s_k in right completions and −s_k in wrong
      ones, which are pushed down, advantages are multiplied by
      `1[|THR_k| > τ] (1 + p sign(THR_k))`.

    Over the whole batch: the rules of `clipped_tokens`.

    **Arguments:**

    - `batch`: whole groups, with their advantages.
    - `correct`: whether each completion is right.
    - `logits`, `hidden`: the sampling policy's, at every response token (`ResponseLogits.hidden`).
    - `seed`: for the tokens that `random_tokens` and `clip_cov` draw.
    """
    if batch.advantage is None:
        raise ConfigError("batch.advantage", None, "collate sampled groups (collate_groups)")
    if config.name == "none":
        return batch.advantage
    if config.name == "positives_only":
        return batch.advantage.clamp(min=0)
    if config.name in CLIPPING:
        logps, scores = token_logps(logits, batch), entropy_scores(logits, batch)
        return clip_advantages(config, batch.advantage, logps, scores, seed=seed)
    rewritten = batch.advantage.clone()
    generator = torch.Generator().manual_seed(seed)
    for group in batch.example.unique().tolist():
        members = batch.example == group
        rate = float(correct[members].double().mean())
        if rate in (0.0, 1.0):
            continue
        tokens = torch.nonzero(members[batch.sequence]).squeeze(1)
        completion, token = batch.sequence[tokens], batch.token[tokens]
        right = correct[completion]
        strength = influence(logits[tokens] / batch.temperature, hidden[tokens], token, right)
        least = config.threshold * _least_mean(strength, completion, right)
        if config.name == "thr":
            hidden_reward = torch.where(right, strength, -strength)
            factors = 1 + config.p * hidden_reward.sign()
            factors[strength.abs() <= least] = config.factor or 0.0
            rewritten[tokens] *= factors.to(rewritten)
            continue
        scaled = ~right & (strength > least)
        if config.name == "random_tokens":
            scaled = _randomised(scaled, completion, generator)
        factor = abs(1 - 2 * rate) if config.factor is None else config.factor
        rewritten[tokens[scaled]] *= factor
    return rewritten


def clip_advantages(
    config: AdvantageRuleConfig,
    advantage: Tokens,
    logps: Tokens,
    scores: EntropyScores,
    *,
    seed: int = 0,
) -> Tokens:
    """Drops the pushes of some tokens of a batch, so that its entropy falls less.

    - Clip-B and Clip-V (Wang et al., arXiv 2602.03392, and the authors' code): of tokens that are
      pushed down, those with `S − S̄ < −μσ`, or `S − E_π S < −μσ`, σ the standard deviation of the
      left side over the batch: unlikely tokens, whose push down sharpens the policy.
    - Clip-Cov (Cui et al., arXiv 2505.22617): at random, of tokens with `(Â − mean Â)(log π − mean
      log π)` between two bounds. Here log π is that of the sampling policy.

    **Arguments:** of every token of the batch, `advantage`, and `logps` (nats) and `scores` of the
    policy that sampled; `seed`: of Clip-Cov's draw.
    """
    if config.name == "clip_cov":
        lowest, highest = config.covariance
        covariance = covariances(advantage, logps)
        places = torch.nonzero((covariance > lowest) & (covariance < highest)).squeeze(1)
        order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
        dropped = torch.zeros_like(advantage, dtype=torch.bool)
        count = max(1, int(config.share * len(advantage)))
        dropped[places[order[:count].to(places.device)]] = True
    else:
        deviation = scores.fall
        if config.name == "clip_b":
            deviation = scores.score - scores.score.mean()
        spread = deviation.std(correction=0)
        dropped = (advantage < 0) & (deviation < -config.deviations * spread) & (spread > 1e-12)
    return torch.where(dropped, (config.factor or 0.0) * advantage, advantage)


def covariances(advantage: Tokens, logps: Tokens) -> Tokens:
    """`(Â − mean Â)(log π − mean log π)` of every token: what a covariance is the mean of."""
    return (advantage - advantage.mean()) * (logps - logps.mean())


def influence(
    logits: Float[Tensor, "tokens vocabulary"],
    hidden: Float[Tensor, "tokens features"],
    token: Int[Tensor, " tokens"],
    right: Bool[Tensor, " tokens"],
    *,
    present_only: bool = True,
) -> Tokens:
    """`s_k = Σ_j ⟨g_j, g_k⟩⟨h_j, h_k⟩` over the tokens j of right completions, `g = e_y − π`.

    Deng et al., arXiv 2505.18830. `g hᵀ` is the gradient of a token's log-probability with respect
    to the output head, so s_k measures how far pushing token k down pushes the right answers down
    through the head. Computed as `gᵀMh` with `M = Σ_j g_j h_jᵀ`.

    **Arguments:** `present_only`: g has only the entries of tokens that occur in the group, as in
    the authors' code, for a fraction of the memory; otherwise those of the whole vocabulary.
    """
    policy = torch.softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
    columns, place = token.unique(return_inverse=True)
    if not present_only:
        columns, place = torch.arange(logits.shape[1], device=token.device), token
    pull = -policy[:, columns]
    pull[torch.arange(len(token), device=token.device), place] += 1
    hidden = hidden.to(pull.dtype)
    moment = pull[right].T @ hidden[right]
    return ((pull @ moment) * hidden).sum(-1)


def _least_mean(
    strength: Tokens, completion: Int[Tensor, " tokens"], right: Bool[Tensor, " tokens"]
) -> Float[Tensor, ""]:
    """The least mean strength of a right completion's tokens; it includes its part of M."""
    means = [strength[completion == number].mean() for number in completion[right].unique()]
    return torch.stack(means).min()


def _randomised(
    selected: Bool[Tensor, " tokens"],
    completion: Int[Tensor, " tokens"],
    generator: torch.Generator,
) -> Bool[Tensor, " tokens"]:
    """Selects as many tokens of each completion at random."""
    drawn = torch.zeros_like(selected)
    for number in completion[selected].unique():
        places = torch.nonzero(completion == number).squeeze(1)
        order = torch.randperm(len(places), generator=generator).to(places.device)
        drawn[places[order[: int(selected[places].sum())]]] = True
    return drawn
