"""Weights and gradients as one vector."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.forces.function.logit_function import Weights


def flatten(weights: Weights) -> Float[Tensor, " parameters"]:
    """All tensors as one vector, one after the other."""
    return torch.cat([w.detach().flatten() for w in weights.values()])


def unflatten(vector: Float[Tensor, " parameters"], like: Weights) -> dict[str, Tensor]:
    """The vector's parts with the names and shapes of some weights."""
    parts = vector.split([w.numel() for w in like.values()])
    return {name: part.view_as(w) for (name, w), part in zip(like.items(), parts, strict=True)}
