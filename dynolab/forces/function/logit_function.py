"""What a tangent kernel is taken of: anything that makes logits of weights and a batch."""

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

Weights = Mapping[str, Tensor]
"""Tensors by parameter name; tied weights stand once, under their first name."""


def cast_like(own: Weights, weights: Weights) -> dict[str, Tensor]:
    """Weights on the device and in the dtype of a function's own, with its names and shapes.

    **Raises:** `ConfigError` for what the function has not, nan and inf.
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
    """A module's output at other weights, which leave the module as it was.

    Tied weights stand in `weights` under one of their names and are replaced wherever they act.
    torch's own tying (`functional_call`) takes a module that is reachable by two paths for two,
    and would leave the other weights in it.
    """
    own = _tensors(module.named_modules(remove_duplicate=False))
    values = {id(own[name]): value for name, value in weights.items()}
    once = _tensors(module.named_modules())
    placed = {name: values[id(tensor)] for name, tensor in once.items() if id(tensor) in values}
    return functional_call(module, placed, arguments, tie_weights=False)


def _tensors(modules: Iterable[tuple[str, nn.Module]]) -> dict[str, Tensor]:
    """Parameters and buffers of some modules themselves, by their whole name."""
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

    `PolicyFunction` is one, of encoded responses; `ModuleFunction` one of features.
    """

    model: nn.Module
    weights: dict[str, Tensor]
    dtype: torch.dtype
    device: torch.device

    def cast(self, weights: Weights) -> dict[str, Tensor]:
        """Weights in the function's dtype; refuses names or shapes it has not."""

    def batch(self, items: Sequence[Any]) -> tuple[Any, list[int]]:
        """Items as one batch, with the number of positions of each."""

    def logits(self, weights: Weights, batch: Any) -> Float[Tensor, "positions classes"]:
        """Logits at the given weights, item after item."""


class ModuleFunction:
    """A classifier, any module from features to logits, as a function of its weights.

    It is used in eval mode, buffers (running statistics, say) as they are. An item is one
    example's features without batch dimension; it has one position.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype = torch.float32) -> None:
        check_finite("weights", {name: p.detach() for name, p in model.named_parameters()})
        self.model, self.dtype = model, dtype
        self.weights: dict[str, Tensor] = {
            name: parameter.detach().to(dtype) for name, parameter in model.named_parameters()
        }
        if not self.weights:
            raise ConfigError("model", type(model).__name__, "it has no parameters to move")
        self.device = next(iter(self.weights.values())).device

    def cast(self, weights: Weights) -> dict[str, Tensor]:
        """Weights on the module's device in its dtype; refuses names or shapes it has not."""
        return cast_like(self.weights, weights)

    def batch(self, items: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
        """Examples' features, one under the other."""
        together = torch.stack([self._in_place(item) for item in items])
        return together, [1] * len(items)

    def logits(
        self, weights: Weights, batch: Shaped[Tensor, "examples ..."]
    ) -> Float[Tensor, "examples classes"]:
        """Logits of every example at the given weights."""
        buffers = {name: self._in_place(buffer) for name, buffer in self.model.named_buffers()}
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

    def _in_place(self, tensor: Tensor) -> Tensor:
        """On the module's device; numbers in its dtype, indices as they are."""
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else tensor.dtype)
