"""The weights that a trainer evaluates, where its optimizer trains others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def has_evaluation_weights(optimizer: Any) -> bool:
    """Whether an optimizer evaluates other weights than it trains, as schedule-free ones do.

    They switch between both by `train()` and `eval()`, which the trainer calls.
    """
    inner = _innermost(optimizer)
    return all(callable(getattr(inner, name, None)) for name in ("train", "eval"))


@contextmanager
def evaluation_weights(optimizer: Any, model: nn.Module) -> Iterator[None]:
    """The weights that the trainer evaluates; afterwards those of before, to the bit."""
    inner: Any = _innermost(optimizer)
    if not has_evaluation_weights(inner):
        yield
        return
    groups = inner.param_groups
    # Schedule-free optimizers keep the mode in their groups; of others the model's tells.
    if not any(group.get("train_mode", model.training) for group in groups):
        yield  # they are there already
        return
    before = {p: p.detach().clone() for group in groups for p in group["params"]}
    inner.eval()
    try:
        yield
    finally:
        inner.train()
        with torch.no_grad():  # switching there and back rounds
            for parameter, weight in before.items():
                parameter.copy_(weight)


def _innermost(optimizer: Any) -> Any:
    """The optimizer without what accelerate or DeepSpeed put around it."""
    while (inner := getattr(optimizer, "optimizer", None)) is not None:
        optimizer = inner
    return optimizer
