"""Flat vectors of named weights, their products, and the block that a parameter belongs to."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.forces.function.weights import Weights

SLICE = 2**18
"""Parameters that are multiplied at once, in float64."""


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


def products(
    left: Float[Tensor, "rows parameters"], right: Float[Tensor, "columns parameters"]
) -> Float[Tensor, "rows columns"]:
    """`left rightᵀ` in float64, some parameters at a time.

    Sums over millions of float32 products would lose the digits in which an account closes.
    """
    total = left.new_zeros(len(left), len(right), dtype=torch.float64)
    for some, others in zip(left.split(SLICE, dim=1), right.split(SLICE, dim=1), strict=True):
        total += some.double() @ others.to(some.device, torch.float64).T
    return total
