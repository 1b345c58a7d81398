"""Functions that have a tangent kernel: they map weights and a batch to logits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.func import functional_call

from dynolab.errors import ConfigError
from dynolab.forces.function.checks import check_finite
from dynolab.likelihood.arithmetic import check_float32_products

Weights = Mapping[str, Tensor]
"""Tensors by parameter name; tied weights appear once, under their first name."""


def cast_like(own: Weights, weights: Weights) -> dict[str, Tensor]:
    """Moves weights to the device and dtype of a function's own; checks names and shapes.

    **Raises:** `ConfigError` for unknown names, other shapes, nan and inf.
    """
    for name, tensor in weights.items():
        mine = own.get(name)
        if mine is None or mine.shape != tensor.shape:
            raise ConfigError(
                f"weights[{name}]",
                tuple(tensor.shape),
                "the model has no such parameter"
                if mine is None
                else f"the model's has shape {tuple(mine.shape)}; give the record's own model",
            )
    check_finite("weights", weights)
    return {name: w.detach().to(own[name].device, own[name].dtype) for name, w in weights.items()}


def call_at(module: nn.Module, weights: Weights, *arguments: Any) -> Any:
    """A module's output at other weights; the module keeps its own.

    Tied weights appear in `weights` under one of their names and are replaced wherever they are
    used. torch's own tying (`functional_call`) treats a module that is reachable by two paths as
    two modules, and would leave the other weights in it.
    """
    own = _tensors(module.named_modules(remove_duplicate=False))
    values = {id(own[name]): value for name, value in weights.items()}
    once = _tensors(module.named_modules())
    placed = {name: values[id(tensor)] for name, tensor in once.items() if id(tensor) in values}
    return functional_call(module, placed, arguments, tie_weights=False)


def _tensors(modules: Iterable[tuple[str, nn.Module]]) -> dict[str, Tensor]:
    """Parameters and buffers that these modules hold directly, by full name."""
    return {
        f"{path}.{name}".removeprefix("."): tensor
        for path, module in modules
        for name, tensor in chain(
            module.named_parameters(recurse=False, remove_duplicate=False),
            module.named_buffers(recurse=False, remove_duplicate=False),
        )
    }


class LogitFunction(Protocol):
    """`θ ↦ z_θ(items)`: logits at every response position of the items of a batch.

    `PolicyFunction` takes encoded responses, `ModuleFunction` features.
    """

    model: nn.Module
    weights: dict[str, Tensor]
    dtype: torch.dtype
    device: torch.device

    def cast(self, weights: Weights) -> dict[str, Tensor]:
        """Weights in the function's dtype; rejects unknown names and other shapes."""

    def batch(self, items: Sequence[Any]) -> tuple[Any, list[int]]:
        """Items as one batch, with the number of positions of each."""

    def logits(self, weights: Weights, batch: Any) -> Float[Tensor, "positions classes"]:
        """Logits at the given weights, item after item."""


class ModuleFunction:
    """A classifier, any module from features to logits, as a function of its weights.

    It runs in eval mode, with its buffers (such as running statistics) unchanged. An item is one
    example's features without batch dimension; it has one position.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype = torch.float32) -> None:
        check_finite("weights", {name: p.detach() for name, p in model.named_parameters()})
        check_float32_products()
        self.model, self.dtype = model, dtype
        self.weights: dict[str, Tensor] = {
            name: parameter.detach().to(dtype) for name, parameter in model.named_parameters()
        }
        if not self.weights:
            raise ConfigError("model", type(model).__name__, "it has no parameters to move")
        self.device = next(iter(self.weights.values())).device

    def cast(self, weights: Weights) -> dict[str, Tensor]:
        """Weights on the module's device in its dtype; rejects unknown names and other shapes."""
        return cast_like(self.weights, weights)

    def batch(self, items: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
        """Examples' features, stacked."""
        features = torch.stack([self._placed(item) for item in items])
        return features, [1] * len(items)

    def logits(
        self, weights: Weights, batch: Shaped[Tensor, "examples ..."]
    ) -> Float[Tensor, "examples classes"]:
        """Logits of every example at the given weights."""
        buffers = {name: self._placed(buffer) for name, buffer in self.model.named_buffers()}
        training = self.model.training
        self.model.eval()
        try:
            logits: Tensor = call_at(self.model, {**buffers, **self.weights, **weights}, batch)
        finally:
            self.model.train(training)
        if logits.shape[:-1] != (len(batch),):
            raise ConfigError(
                "model",
                f"output of shape {tuple(logits.shape)} for {len(batch)} examples",
                "give a module whose output is examples × classes",
            )
        return logits

    def _placed(self, tensor: Tensor) -> Tensor:
        """The tensor on the module's device; floats in its dtype, integers unchanged."""
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else tensor.dtype)
