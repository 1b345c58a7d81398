"""Moves all tensors of a batch to a device at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

ALIGNMENT = 16
"""Bytes; more than any element has, so that every tensor of a buffer starts at a whole element."""

Batch = TypeVar("Batch")


def to_device(batch: Batch, device: torch.device | str) -> Batch:
    """A data class, and those within it, with their tensors on a device.

    A GPU takes them from pinned memory in one transfer, for which the host does not wait. The moved
    tensors then share one buffer.
    """
    tensors: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    _change_tensors(batch, keep)
    moved = iter(_moved(tensors, torch.device(device)))
    changed: Batch = _change_tensors(batch, lambda _: next(moved))
    return changed


def _change_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The value with its tensors changed one by one, in the order of the fields."""
    if isinstance(value, Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        return replace(value, **{name: _change_tensors(v, change) for name, v in named.items()})
    if isinstance(value, tuple):
        return tuple(_change_tensors(item, change) for item in value)
    return value


def _moved(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    if device.type != "cuda" or any(tensor.device.type != "cpu" for tensor in tensors):
        return [tensor.to(device) for tensor in tensors]
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    places = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    buffer = torch.empty(sum(places), dtype=torch.uint8, pin_memory=True)
    for part, size, tensor in zip(buffer.split(places), sizes, tensors, strict=True):
        part[:size] = tensor.contiguous().flatten().view(torch.uint8)
    there = buffer.to(device, non_blocking=True).split(places)
    return [
        part[:size].view(tensor.dtype).view(tensor.shape)
        for part, size, tensor in zip(there, sizes, tensors, strict=True)
    ]
