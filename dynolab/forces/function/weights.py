"""Weights by parameter name or as flat vectors, and calls of a module at other weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.func import functional_call

from dynolab.errors import ConfigError
from dynolab.forces.function.checks import check_finite

Weights = Mapping[str, Float[Tensor, " ..."]]
"""Tensors by parameter name; tied weights appear once, under their first name."""

NamedTensors = dict[str, Float[Tensor, " ..."]]
"""The same where the reader may change it."""


def cast_like(model_weights: Weights, weights: Weights) -> NamedTensors:
    """Moves weights to the device and dtype of a model's own; checks names and shapes.

    **Raises:** `ConfigError` for unknown names, other shapes, nan and inf.
    """
    for name, tensor in weights.items():
        mine = model_weights.get(name)
        if mine is None or mine.shape != tensor.shape:
            raise ConfigError(
                f"weights[{name}]",
                tuple(tensor.shape),
                "the model has no such parameter"
                if mine is None
                else f"the model's has shape {tuple(mine.shape)}; give the record's own model",
            )
    check_finite("weights", weights)
    return {
        name: w.detach().to(model_weights[name].device, model_weights[name].dtype)
        for name, w in weights.items()
    }


def gradients(
    value: Float[Tensor, " ..."] | Sequence[Float[Tensor, " ..."]],
    leaves: Weights,
    pull: Float[Tensor, " ..."] | Sequence[Float[Tensor, " ..."]] | None = None,
) -> NamedTensors:
    """`∂value/∂leaf` of every leaf by name, zero where it does not act; the graph is kept.

    **Arguments:** `pull`: the cotangent of the value; default: 1.
    """
    by_leaf = torch.autograd.grad(
        value, list(leaves.values()), pull, retain_graph=True, materialize_grads=True
    )
    return dict(zip(leaves, by_leaf, strict=True))


def call_at(module: nn.Module, weights: Weights, *arguments: Any) -> Any:
    """A module's output at other weights; the module keeps its own.

    Tied weights appear in `weights` under one of their names and are replaced wherever they are
    used. torch's own tying (`functional_call`) treats a module that is reachable by two paths as
    two modules, and would leave the other weights in it.
    """
    tensors = _tensors(module.named_modules(remove_duplicate=False))
    values = {id(tensors[name]): value for name, value in weights.items()}
    once = _tensors(module.named_modules())
    placed = {name: values[id(tensor)] for name, tensor in once.items() if id(tensor) in values}
    return functional_call(module, placed, arguments, tie_weights=False)


def shape_of(parameter: Shaped[Tensor, " ..."]) -> torch.Size:
    """A parameter's own shape, also while ZeRO-3 keeps an empty tensor in its place."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def call_alone(
    module: nn.Module, weights: Weights, value: Float[Tensor, " ..."]
) -> Float[Tensor, " ..."]:
    """A module's own forward at other parameters than its own, without what its hooks do.

    FSDP2's hooks would put the parameters back, and its modules cannot be copied.
    """
    alone: Any = object.__new__(type(module))
    alone.__dict__ = {**module.__dict__, "_parameters": {**module._parameters, **weights}}
    return alone.forward(value)


def _tensors(modules: Iterable[tuple[str, nn.Module]]) -> dict[str, Shaped[Tensor, " ..."]]:
    """Parameters and buffers that these modules hold directly, by full name."""
    return {
        f"{path}.{name}".removeprefix("."): tensor
        for path, module in modules
        for name, tensor in chain(
            module.named_parameters(recurse=False, remove_duplicate=False),
            module.named_buffers(recurse=False, remove_duplicate=False),
        )
    }


SLICE = 2**18
"""Parameters that are multiplied at once."""

SUMMED = 1024
"""Parameters over which float32 products are summed in float32."""


def block_of(parameter: str) -> str:
    """The layer that a parameter belongs to, by its number; of others the module's name."""
    parts = parameter.split(".")
    numbered = [place for place, part in enumerate(parts) if part.isdigit()]
    if numbered and numbered[0]:
        return ".".join(parts[numbered[0] - 1 : numbered[0] + 1])
    return parts[-2] if len(parts) > 1 else parameter


def block_columns(weights: Mapping[str, Float[Tensor, " ..."]]) -> dict[str, list[slice]]:
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


def unflatten(vector: Float[Tensor, " parameters"], like: Weights) -> NamedTensors:
    """The vector's parts with the names and shapes of some weights."""
    parts = vector.split([w.numel() for w in like.values()])
    return {name: part.view_as(w) for (name, w), part in zip(like.items(), parts, strict=True)}


def products(
    left: Float[Tensor, "rows parameters"], right: Float[Tensor, "columns parameters"]
) -> Float[Tensor, "rows columns"]:
    """`left rightᵀ`, summed in float64, some parameters at a time.

    Sums over millions of float32 products would lose the digits in which an account closes. Of
    float32 numbers, sums over `SUMMED` parameters are made in float32, ten times as fast.
    """
    total = left.new_zeros(len(left), len(right), dtype=torch.float64)
    for some, others in zip(left.split(SLICE, dim=1), right.split(SLICE, dim=1), strict=True):
        others = others.to(some.device)
        blocks = 0
        if some.dtype == others.dtype == torch.float32:
            blocks = some.shape[1] // SUMMED * SUMMED
            lefts, rights = (part[:, :blocks].unflatten(1, (-1, SUMMED)) for part in (some, others))
            sums = torch.bmm(lefts.transpose(0, 1), rights.permute(1, 2, 0))
            total += sums.sum(0, dtype=torch.float64)
        total += some[:, blocks:].double() @ others[:, blocks:].double().T
    return total
