"""A model's parameters in blocks: each layer, and what stands before and after the layers."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


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
