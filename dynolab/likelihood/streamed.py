"""Weights that wait in main memory and come to a device module by module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def streamed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """While open, a module's own weights are on the device as long as its forward runs.

    Gradients by them end where they wait. autograd keeps a weight's place instead of its copy, and
    fetches it again for the backward pass. Forward-mode derivatives come with the weights.

    The device holds the weights of one module, once for each derivative, all buffers, and
    activations.
    """
    waiting: dict[tuple[nn.Module, str], Tensor] = {}
    homes: dict[int, Tensor] = {}
    spot = torch.empty(0, device=device)  # autograd's hooks make others beside it

    def fetch(module: nn.Module, _: Any) -> None:
        for name, own in module._parameters.items():
            if own is not None and own.device != device:
                waiting[module, name] = own
                here: Any = own.to(device)
                module._parameters[name] = here
                if storage := _storage(here):
                    homes[storage] = own

    def release(module: nn.Module, *_: Any) -> None:
        for name, here in module._parameters.items():
            if here is not None and (module, name) in waiting:
                homes.pop(_storage(here), None)
                kept: Any = waiting.pop((module, name))
                module._parameters[name] = kept

    def pack(tensor: Tensor) -> Any:
        home = homes.get(_storage(tensor))
        if home is None:
            return tensor
        return home.detach(), tensor.size(), tensor.stride(), tensor.storage_offset()

    def unpack(kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        home, *view = kept
        here = spot.new_empty_strided(home.size(), home.stride(), dtype=home.dtype)
        return here.copy_(home).as_strided(*view)

    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(module._buffers.update, dict(module._buffers))
            moved = {
                name: own.to(device) for name, own in module._buffers.items() if own is not None
            }
            module._buffers.update(moved)
            if any(own is not None for own in module._parameters.values()):
                stack.callback(module.register_forward_pre_hook(fetch).remove)
                after = module.register_forward_hook(release, always_call=True)
                stack.callback(after.remove)
        if torch.is_grad_enabled():
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, unpack))
        yield


def _storage(tensor: Tensor) -> int:
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
