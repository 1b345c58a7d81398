"""Builds torch's optimizers and computes the learning rate of every step."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from dynolab.training.config import OptimizerConfig

STATE_TENSORS = {
    "sgd": ("momentum_buffer",),
    "adamw": ("exp_avg", "exp_avg_sq"),
    "rmsprop": ("square_avg", "momentum_buffer"),
}
"""The optimizer state tensors that have the shape of their parameter."""

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


def learning_rate(config: OptimizerConfig, warmup_steps: int, step: int) -> float:
    """Learning rate at 0-based `step`: linear warm-up, then constant."""
    if step >= warmup_steps:
        return config.learning_rate
    return config.learning_rate * (step + 1) / warmup_steps


def clip_factor(grad_norm: float, clip_norm: float) -> float:
    """Factor by which torch and DeepSpeed scale a gradient of this global norm to clip it."""
    return min(1.0, clip_norm / (grad_norm + CLIP_EPSILON))
