"""Common parts of policy gradients on sampled groups: advantages, clipping, KL, denominators."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.errors import ConfigError
from dynolab.objectives.advantage_rules import AdvantageRuleConfig

Tokens = Float[Tensor, "tokens"]


def group_advantages(
    rewards: Float[Tensor, " completions"],
    *,
    scale_by_std: bool = True,
    leave_one_out: bool = False,
) -> Float[Tensor, " completions"]:
    """`Â_i = (r_i − mean r)/(std r + 1e-4)` over one group, std with Bessel's correction.

    Shao et al., arXiv 2402.03300, §4.1.2; without the division it is Dr. GRPO's
    (arXiv 2503.20783). A group with equal rewards has zero advantages. `leave_one_out` compares
    with the mean of the others, `r_i − Σ_{j≠i} r_j/(G − 1)` (RLOO, arXiv 2402.14740).

    **Raises:** `ConfigError` for a group of fewer than two completions.
    """
    if len(rewards) < 2:
        raise ConfigError(
            "group size", len(rewards), "an advantage compares completions; sample two or more"
        )
    centred = rewards - rewards.mean()
    if leave_one_out:
        centred = centred * len(rewards) / (len(rewards) - 1)
    return centred / (rewards.std() + 1e-4) if scale_by_std else centred


Aggregation = Literal["grpo", "bnpo", "dr_grpo", "dapo", "luspo"]
Surrogate = Literal["clipped", "cispo", "sapo", "vespo"]


class ClippedConfig(BaseModel):
    """Base of the settings of a clipped policy gradient."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    clip_low: float = Field(
        default=0.2, gt=0, lt=1, description="Ratios are clipped below 1 − this."
    )
    clip_high: float = Field(default=0.2, gt=0, description="Ratios are clipped above 1 + this.")
    kl: float = Field(
        default=0.0, ge=0, description="Weight β of the divergence from the reference."
    )
    scale_by_std: bool = Field(
        default=True, description="Divide a group's centred rewards by their standard deviation."
    )
    leave_one_out: bool = Field(
        default=False,
        exclude_if=lambda out: not out,
        description="An answer's reward is compared with the mean of the group's others (RLOO, "
        "with ratio: product and scale_by_std: false).",
    )
    kl_in_reward: float = Field(
        default=0.0,
        ge=0,
        exclude_if=lambda weight: not weight,
        description="Weight β of log π − log π_ref of the sampled answer, taken off its reward.",
    )
    advantage_rule: AdvantageRuleConfig = Field(
        default=AdvantageRuleConfig(), description="Rewrites advantages per token before training."
    )
    aggregation: Aggregation = Field(
        default="grpo",
        description="TRL's loss_type. grpo: mean over completions of their token means, "
        "1/G Σ 1/|y| Σ. dapo and bnpo: mean over all tokens of the step (bnpo's mean is taken per "
        "batch, and a step is one batch here). dr_grpo: sum over tokens, divided by completions × "
        "max_tokens. luspo: mean over completions of their token sums.",
    )
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Longest completion that sampling allows; dr_grpo divides by it.",
    )
    overlong_buffer: int | None = Field(
        default=None,
        ge=1,
        exclude_if=lambda buffer: buffer is None,
        description="Over the last so many tokens before max_tokens a completion's reward falls, "
        "by 1 at the limit (DAPO's soft punishment).",
    )

    @model_validator(mode="after")
    def _check_max_tokens(self) -> ClippedConfig:
        reader = "dr_grpo divides by it" if self.aggregation == "dr_grpo" else ""
        reader = reader or ("overlong_buffer ends there" if self.overlong_buffer else "")
        if reader and (self.max_tokens is None or (self.overlong_buffer or 0) > self.max_tokens):
            remedy = f"{reader}; set it to the token limit of the sampling"
            raise ConfigError("max_tokens", self.max_tokens, remedy)
        return self

    @property
    def reads_reference(self) -> bool:
        """Whether the reference scores the sampled answers."""
        return self.kl > 0 or self.kl_in_reward > 0


def advantages(batch: TokenBatch) -> Tokens:
    """Advantage of each token.

    **Raises:** `ConfigError` for a batch without sampled groups.
    """
    if batch.advantage is None:
        raise ConfigError(
            "objective",
            "a policy gradient",
            "it learns from sampled groups (collate_groups), not from rows of preferred answers",
        )
    return batch.advantage


def aggregation_weights(config: ClippedConfig, batch: TokenBatch, like: Tokens) -> Tokens:
    """Weight of each token's term: one over its denominator."""
    totals = batch.totals
    if config.aggregation == "grpo":
        return 1 / (totals.sequences * batch.sequence_length[batch.sequence]).to(like)
    if config.aggregation == "luspo":
        return torch.full_like(like, 1 / totals.sequences)
    if config.aggregation == "dr_grpo":
        assert config.max_tokens is not None
        return torch.full_like(like, 1 / (totals.sequences * config.max_tokens))
    return torch.full_like(like, 1 / totals.tokens)


def clipped(config: ClippedConfig, ratio: Tokens, advantage: Tokens) -> Tokens:
    """`min(ρÂ, clip(ρ, 1 − ε_low, 1 + ε_high)Â)`, Schulman et al., arXiv 1707.06347, eq. 7."""
    bounded = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    return torch.minimum(ratio * advantage, bounded * advantage)


def live(config: ClippedConfig, ratio: Tokens, advantage: Tokens) -> Bool[Tensor, " tokens"]:
    """Where `clipped` has a nonzero slope: ρ ≤ 1 + ε_high if Â > 0, ρ ≥ 1 − ε_low if Â < 0.

    Clipping is one-sided: a ratio that moved the wrong way is pulled back from any distance.
    """
    up, down = ratio <= 1 + config.clip_high, ratio >= 1 - config.clip_low
    return torch.where(advantage > 0, up, down)


def divergence(logps: Tokens, batch: TokenBatch) -> Tokens:
    """k3 of each token, `e^{ref − π} − (ref − π) − 1`: its mean over samples estimates the KL.

    Schulman, *Approximating KL divergence* (2020); Shao et al., arXiv 2402.03300, eq. 4. Its slope
    is `−∂k3/∂log π = e^{ref − π} − 1`.
    """
    gap = reference_gap(logps, batch)
    return torch.expm1(gap) - gap


def reference_gap(logps: Tokens, batch: TokenBatch) -> Tokens:
    """log π_ref − log π of every token."""
    assert batch.reference is not None, "objectives with kl > 0 set needs_reference"
    return batch.reference - logps


def report(
    config: ClippedConfig, logps: Tokens, ratio: Tokens, batch: TokenBatch
) -> dict[str, Float[Tensor, ""]]:
    """Means over the step's tokens, as sums for the trainer to divide by the step's examples."""
    advantage = advantages(batch)
    named = {
        "train/ratio": ratio,
        "train/clip_fraction": (~live(config, ratio, advantage)).to(ratio) * (advantage != 0),
        "train/logp_per_token": logps,
        "train/advantage_size": advantage.abs(),
    }
    if config.kl:
        named["train/kl"] = divergence(logps, batch)
    if batch.dose is not None:
        named["train/dose"] = batch.dose.to(logps)
    share = batch.totals.examples / batch.totals.tokens
    return {name: values.detach().sum() * share for name, values in named.items()}
