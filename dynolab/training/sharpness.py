"""SAM on the output layer: the gradient of a step where its loss is sharper.

With `ρ` of `objective.logits_sam`, head `W` and the loss `L` of the step's whole batch,

    e = ρ g / ‖g‖,  g = ∂L/∂W  as output layer,

and the step's gradient, by all weights, is that of `L` with `W + e` in place of `W` (logits-SAM,
Luo et al., arXiv 2603.18258). Where input and output embeddings are one matrix, it is moved as
output layer alone. What a training logs of the step's loss is of the moved layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from dynolab.errors import ConfigError

Shift = Float[Tensor, "vocabulary features"]


def output_layer(model: nn.Module) -> nn.Linear:
    """The layer that makes logits of hidden states.

    **Raises:** `ConfigError` for a model whose layer is another than a linear one.
    """
    layer = getattr(model, "get_output_embeddings", lambda: None)()
    if isinstance(layer, nn.Linear):
        return layer
    raise ConfigError(
        "objective.logits_sam",
        type(layer).__name__,
        "needs a linear output layer; leave it out, or use another model",
    )


@contextmanager
def shifted(layer: nn.Linear, shift: Shift) -> Iterator[None]:
    """While open, the layer's weight is `weight + shift`; gradients go through both."""

    def add(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return output + linear(inputs[0].to(shift.dtype), shift).to(output.dtype)

    handle = layer.register_forward_hook(add)
    try:
        yield
    finally:
        handle.remove()


def no_shift(layer: nn.Linear) -> Shift:
    """Zeros by which the loss's gradient is that by the layer's weight, as output layer."""
    dtype = torch.promote_types(layer.weight.dtype, torch.float32)  # in 16 bits sums lose digits
    return torch.zeros_like(layer.weight, dtype=dtype, requires_grad=True)


def ascent(gradient: Shift, rho: float) -> Shift:
    """`ρ g / ‖g‖`: where a loss of this gradient rises fastest; zeros where there is none.

    **Arguments:** `rho`: the length, by the Euclidean norm over the whole matrix.
    """
    norm = gradient.norm()
    return gradient * (rho / norm) if norm > 0 else gradient
