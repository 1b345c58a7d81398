"""Makes one flat vector of named weights and back, and says which block a parameter belongs to."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.forces.function.weights import Weights


def block_of(parameter: str) -> str:
    """The layer that a parameter belongs to, by its number; of others the module's name."""
    parts = parameter.split(".")
    numbered = [place for place, part in enumerate(parts) if part.isdigit()]
    if numbered and numbered[0]:
        return ".".join(parts[numbered[0] - 1 : numbered[0] + 1])
    return parts[-2] if len(parts) > 1 else parameter


def block_columns(weights: Mapping[str, Tensor]) -> dict[str, list[slice]]:
    """Each block's columns of flat vectors (`flatten`) of these weights."""
    columns: dict[str, list[slice]] = {}
    stop = 0
    for name, weight in weights.items():
        start, stop = stop, stop + weight.numel()
        columns.setdefault(block_of(name), []).append(slice(start, stop))
    return columns


def flatten(weights: Weights) -> Float[Tensor, " parameters"]:
    """All tensors as one vector, one after the other."""
    return torch.cat([w.detach().flatten() for w in weights.values()])


def unflatten(vector: Float[Tensor, " parameters"], like: Weights) -> dict[str, Tensor]:
    """The vector's parts with the names and shapes of some weights."""
    parts = vector.split([w.numel() for w in like.values()])
    return {name: part.view_as(w) for (name, w), part in zip(like.items(), parts, strict=True)}
