"""Frozen matrices that stay in bf16 while a model computes in fp32.

Adapters (LoRA) leave a model's weights where they are. If a training rounded the weights to bf16,
they are the same numbers in bf16 as in fp32, at half the bytes; each matrix is widened while its
product is taken.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

WIDENED = 2**26
"""Numbers of a weight that are widened at once."""


class FrozenLinear(nn.Linear):
    """A linear layer whose weight has no derivative and may be narrower than its input."""

    def forward(self, input: Float[Tensor, "*rows d_in"]) -> Float[Tensor, "*rows d_out"]:
        """`x Wᵀ + b` in the input's dtype."""
        product: Tensor = _Product.apply(input, self.weight)
        return product if self.bias is None else product + self.bias


class FrozenEmbedding(nn.Embedding):
    """A table whose rows are widened to fp32 where they are in bf16."""

    def forward(self, input: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows width"]:
        """The tokens' rows."""
        rows = super().forward(input)
        return rows.float() if rows.dtype == torch.bfloat16 else rows


class _Product(torch.autograd.Function):
    """`x Wᵀ`. autograd would keep W in x's dtype, of all layers, until the backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor, weight: Tensor) -> Tensor:
        parts = weight.split(max(1, WIDENED // weight.shape[1]))
        made = [F.linear(input, part.to(input.dtype)) for part in parts]
        return made[0] if len(made) == 1 else torch.cat(made, -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, signal: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return _Product.apply(signal, weight.mT), None

    @staticmethod
    def jvp(ctx: Any, moved: Tensor, _: None) -> Any:
        (weight,) = ctx.saved_tensors
        return _Product.apply(moved, weight)


_NARROW: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: FrozenLinear,
    nn.Embedding: FrozenEmbedding,
}


def keep_frozen_narrow(model: nn.Module) -> None:
    """Rounds a model's frozen matrices to bf16, and makes it compute in fp32 with them.

    These are the weights of its linear layers and tables that require no gradient, unless a module
    of another kind uses them, too. Everything else becomes fp32.
    """
    others = set()
    for module in model.modules():
        narrow = _NARROW.get(type(module))
        if narrow is not None and not module.weight.requires_grad:
            module.__class__ = narrow
        else:
            others |= {id(own) for own in module.parameters(recurse=False)}
    kept = without_derivative(model) - others
    for parameter in model.parameters():
        dtype = torch.bfloat16 if id(parameter) in kept else torch.float32
        parameter.data = parameter.data.to(dtype)


def without_derivative(model: nn.Module) -> set[int]:
    """Identities of the weights by which a model that keeps some narrow has no derivative."""
    frozen = FrozenLinear | FrozenEmbedding
    return {id(own.weight) for own in model.modules() if isinstance(own, frozen)}
