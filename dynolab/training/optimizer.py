"""Builds torch's optimizers and computes the learning rate of every step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from dynolab.training.config import LoopConfig, OptimizerConfig

STATE_TENSORS = {
    "sgd": ("momentum_buffer",),
    "adamw": ("exp_avg", "exp_avg_sq"),
    "rmsprop": ("square_avg", "momentum_buffer"),
}
"""The optimizer state tensors that have the shape of their parameter."""

SECOND_MOMENT = {"adamw": "exp_avg_sq", "rmsprop": "square_avg"}
"""The state by whose root an optimizer divides."""

CLIP_EPSILON = 1e-6
"""What torch and DeepSpeed add to a gradient's norm before they clip by it."""


def build_optimizer(
    config: OptimizerConfig, parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """Builds the torch optimizer of a config."""
    if config.name == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
    if config.name == "adamw":
        return torch.optim.AdamW(
            parameters,
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            fused=True,  # one pass over weights and moments instead of ten
        )
    return torch.optim.RMSprop(
        parameters,
        lr=config.learning_rate,
        alpha=config.smoothing,
        eps=config.epsilon,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )


def learning_rate(config: LoopConfig, step: int) -> float:
    """Learning rate at 0-based `step`: linear warm-up, then `config.schedule`.

    Of the steps after warm-up, the part s is over: `linear` has the rate times 1 − s, `cosine`
    times (1 + cos πs) / 2.
    """
    peak, warmup = config.optimizer.learning_rate, config.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    over = (step - warmup) / max(1, config.steps - warmup)
    match config.schedule:
        case "constant":
            return peak
        case "linear":
            return peak * (1 - over)
        case "cosine":
            return peak * (1 + math.cos(math.pi * over)) / 2


def in_metric(
    config: OptimizerConfig,
    step: int,
    gradient: Mapping[str, Tensor],
    moments: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """P g: a gradient in the metric of 0-based `step`, up to a common factor.

    SGD: g. AdamW and RMSprop: `g / (√v' + ε)`, v' the second moment (AdamW's bias-corrected) after
    a step whose gradient is g, scaled to the moments' size. With the moment before the step alone,
    what earlier batches have hardly touched would outweigh all else.

    **Arguments:** `moments`: before the step, by parameter name; empty before the first.
    """
    if config.name not in SECOND_MOMENT:
        return dict(gradient)
    keep = config.betas[1] if config.name == "adamw" else config.smoothing
    past, future = (1 - keep**t if config.name == "adamw" else 1.0 for t in (step, step + 1))
    own = sum(g.square().sum(dtype=torch.float64) for g in gradient.values())
    known = sum(v.sum(dtype=torch.float64) for v in moments.values()) / (past or 1.0)
    scale = float(known / own) if moments else 1.0
    return {
        name: g
        / (_after(moments.get(name), scale * g.square(), keep).div(future).sqrt() + config.epsilon)
        for name, g in gradient.items()
    }


def _after(moment: Tensor | None, square: Tensor, keep: float) -> Tensor:
    """`keep v + (1 − keep) g²`."""
    return (1 - keep) * square if moment is None else torch.lerp(square, moment, keep)


def clip_factor(grad_norm: float, clip_norm: float) -> float:
    """Factor by which torch and DeepSpeed scale a gradient of this global norm to clip it."""
    return min(1.0, clip_norm / (grad_norm + CLIP_EPSILON))
