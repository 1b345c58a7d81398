"""Weights that are narrow, or wait elsewhere, until they are used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

WIDENED = 2**26
"""Numbers of a weight that are widened at once."""


class FrozenLinear(nn.Linear):
    """A linear layer whose weight has no derivative and may be narrower than its input."""

    def forward(self, input: Float[Tensor, "*rows d_in"]) -> Float[Tensor, "*rows d_out"]:
        """`x Wᵀ + b` in the input's dtype."""
        product: Float[Tensor, "*rows d_out"] = _Product.apply(input, self.weight)
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
    def forward(
        input: Float[Tensor, "*rows d_in"], weight: Float[Tensor, "d_out d_in"]
    ) -> Float[Tensor, "*rows d_out"]:
        parts = weight.split(max(1, WIDENED // weight.shape[1]))
        products = [F.linear(input, part.to(input.dtype)) for part in parts]
        return products[0] if len(products) == 1 else torch.cat(products, -1)

    @staticmethod
    def setup_context(
        ctx: Any,
        inputs: tuple[Float[Tensor, "*rows d_in"], Float[Tensor, "d_out d_in"]],
        output: Float[Tensor, "*rows d_out"],
    ) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, signal: Float[Tensor, "*rows d_out"]) -> Any:
        (weight,) = ctx.saved_tensors
        return _Product.apply(signal, weight.mT), None

    @staticmethod
    def jvp(ctx: Any, moved: Float[Tensor, "*rows d_in"], _: None) -> Any:
        (weight,) = ctx.saved_tensors
        return _Product.apply(moved, weight)


_NARROW: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: FrozenLinear,
    nn.Embedding: FrozenEmbedding,
}


def keep_frozen_narrow(model: nn.Module) -> None:
    """Rounds a model's frozen matrices to bf16, and makes it compute in fp32 with them.

    Adapters (LoRA) leave a model's weights where they are. If a training rounded the weights to
    bf16, they are the same numbers in bf16 as in fp32, at half the bytes; each matrix is widened
    while its product is taken.

    These are the weights of its linear layers and tables that require no gradient, unless a module
    of another kind uses them, too. Everything else becomes fp32.
    """
    others = set()
    for module in model.modules():
        frozen_kind = _NARROW.get(type(module))
        if frozen_kind is not None and not module.weight.requires_grad:
            module.__class__ = frozen_kind
        else:
            others |= {id(weight) for weight in module.parameters(recurse=False)}
    narrow = without_derivative(model) - others
    for parameter in model.parameters():
        dtype = torch.bfloat16 if id(parameter) in narrow else torch.float32
        parameter.data = parameter.data.to(dtype)


def without_derivative(model: nn.Module) -> set[int]:
    """Identities of the weights by which a model that keeps some narrow has no derivative."""
    frozen = FrozenLinear | FrozenEmbedding
    return {id(module.weight) for module in model.modules() if isinstance(module, frozen)}


@contextmanager
def streamed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """While open, a module's own weights are on the device as long as its forward runs.

    Gradients by them end where they wait. autograd keeps a weight's place instead of its copy, and
    fetches it again for the backward pass. Forward-mode derivatives come with the weights.

    The device holds the weights of one module, once for each derivative, all buffers, and
    activations.
    """
    waiting: dict[tuple[nn.Module, str], Shaped[Tensor, " ..."]] = {}
    homes: dict[int, Shaped[Tensor, " ..."]] = {}
    spot = torch.empty(0, device=device)  # autograd's hooks make others beside it

    def fetch(module: nn.Module, _: Any) -> None:
        for name, weight in module._parameters.items():
            if weight is not None and weight.device != device:
                waiting[module, name] = weight
                here: Any = weight.to(device)
                module._parameters[name] = here
                storage = _storage(here)
                if storage:
                    homes[storage] = weight

    def release(module: nn.Module, *_: Any) -> None:
        for name, here in module._parameters.items():
            if here is not None and (module, name) in waiting:
                homes.pop(_storage(here), None)
                weight: Any = waiting.pop((module, name))
                module._parameters[name] = weight

    def pack(tensor: Shaped[Tensor, " ..."]) -> Any:
        home = homes.get(_storage(tensor))
        if home is None:
            return tensor
        return home.detach(), tensor.size(), tensor.stride(), tensor.storage_offset()

    def unpack(saved: Any) -> Shaped[Tensor, " ..."]:
        if isinstance(saved, Tensor):
            return saved
        home, *view = saved
        here = spot.new_empty_strided(home.size(), home.stride(), dtype=home.dtype)
        return here.copy_(home).as_strided(*view)

    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(module._buffers.update, dict(module._buffers))
            moved = {
                name: buffer.to(device)
                for name, buffer in module._buffers.items()
                if buffer is not None
            }
            module._buffers.update(moved)
            if any(weight is not None for weight in module._parameters.values()):
                stack.callback(module.register_forward_pre_hook(fetch).remove)
                after = module.register_forward_hook(release, always_call=True)
                stack.callback(after.remove)
        if torch.is_grad_enabled():
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, unpack))
        yield


Narrow = list[tuple[nn.Module, str, Any]]
"""Modules, and their weights in 16 bits by name."""


@contextmanager
def widened(model: nn.Module) -> Iterator[None]:
    """While open, weights in 16 bits are float32, and so are passes without a gradient.

    A layer's are as long as it runs: those of the items of the model's lists of modules.
    """
    with ExitStack() as stack:
        layers = _layers(model)
        for layer in layers:
            narrow: Narrow = []
            widen = partial(_widen, list(layer.modules()), narrow)
            before = layer.register_forward_pre_hook(widen)
            after = layer.register_forward_hook(partial(_put_back, narrow), always_call=True)
            stack.callback(before.remove)
            stack.callback(after.remove)
        in_layers = set(chain.from_iterable(layer.modules() for layer in layers))
        others: Narrow = []
        stack.callback(_put_back, others)
        _widen([module for module in model.modules() if module not in in_layers], others)
        yield


def _layers(model: nn.Module) -> list[nn.Module]:
    """The items of lists of modules that are in no other list."""
    layers: dict[nn.Module, None] = {}
    inside: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and module not in inside:
            layers |= dict.fromkeys(module)
            inside |= set(module.modules())
    return list(layers)


def _widen(modules: list[nn.Module], narrow: Narrow, *_: Any) -> None:
    wide: dict[int, Any] = {}  # tied weights are one
    for module in modules:
        for name, weight in module._parameters.items():
            if weight is not None and weight.dtype in (torch.bfloat16, torch.float16):
                narrow.append((module, name, weight))
                if id(weight) not in wide:
                    wide[id(weight)] = weight.detach().float()
                module._parameters[name] = wide[id(weight)]


def _put_back(narrow: Narrow, *_: Any) -> None:
    while narrow:
        module, name, weight = narrow.pop()
        module._parameters[name] = weight


def _storage(tensor: Shaped[Tensor, " ..."]) -> int:
    """A storage's identity; 0 of a tensor within a transform of `torch.func`, of which none is
    saved."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return 0 if wrapped else tensor.untyped_storage()._cdata


def stream(causal: nn.Module, device: torch.device) -> None:
    """Has a model's weights streamed to a device from now on, for passes without a gradient."""
    always: Any = ExitStack()
    with torch.no_grad():
        always.enter_context(streamed(causal, device))
    causal.streams = device, always  # type: ignore[assignment]


def device_of(causal: nn.Module) -> torch.device:
    """Where a model's passes run: where its weights are, or are streamed to."""
    streams: Any = getattr(causal, "streams", None)
    return next(causal.parameters()).device if streams is None else streams[0]
