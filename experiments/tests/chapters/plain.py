"""Random numbers, and the obvious way to train: torch's SGD in a loop, one network at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from experiments.chapters.classifiers.many import Loss, SGDConfig


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def train(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    order: Tensor,
    config: SGDConfig,
    loss: Loss = nn.functional.cross_entropy,
) -> Tensor:
    """Trains in place on the rows of every step; returns the losses before the steps."""
    optimizer = torch.optim.SGD(
        model.parameters(),
        config.learning_rate,
        config.momentum,
        weight_decay=config.weight_decay,
    )
    losses = []
    for rows in order:
        optimizer.zero_grad()
        value = loss(model(inputs[rows]), targets[rows])
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    return torch.stack(losses)
