"""A pretended GPU: tensors tagged `cuda:0` whose values are real ones of the CPU.

A `PretendedTensor` holds its values in a CPU tensor and reports the device `cuda:0`. Every
operation of torch on one goes through `run`, which notes in `LOG` what a GPU would refuse, wait for
or add in any order, and computes on the CPU. `PretendedGPU` is the mode in which new tensors are
made on that device. The library of `guard.cpp` must be loaded before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from tests.gpu.log import LOG
from tests.gpu.operations import adds_in_any_order, mixes, name_of, waits

GPU = torch.device("cuda", 0)
_pinned: set[int] = set()
"""Storages in pinned memory, by the address of their data."""
_kept: list[Tensor] = []
"""Pinned tensors, so that no address is given to another one."""


class PretendedTensor(torch.Tensor):
    """A tensor on the pretended GPU."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> PretendedTensor:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            layout=values.layout,
            device=GPU,
        )
        made.values = values
        return made

    def __repr__(self, **_: Any) -> str:
        return f"on the pretended GPU: {self.values!r}"

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        named = named or {}
        if function is torch.nn.functional.scaled_dot_product_attention:
            note_attention(*args, **named)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **named)

    @classmethod
    def __torch_dispatch__(
        cls,
        operation: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        return run(operation, args, named or {})


class PretendedGPU(TorchDispatchMode):
    """While it is entered, `device="cuda"` makes tensors on the pretended GPU."""

    def __torch_dispatch__(
        self,
        operation: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        return run(operation, args, named or {})


def on_gpu(tensor: object) -> bool:
    """Whether a tensor is on the pretended GPU."""
    return isinstance(tensor, PretendedTensor)


def run(operation: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Computes an operation of torch on the CPU and notes what a GPU would do."""
    name = name_of(operation)
    if name in PINNING:
        return PINNING[name](args[0])
    pins = bool(named.get("pin_memory"))
    tensors = [*tensors_in(args), *tensors_in(named.values())]
    target = None if named.get("device") is None else torch.device(named["device"])
    to_gpu = target is not None and target.type == "cuda"
    if not to_gpu and not any(map(on_gpu, tensors)):
        made = operation(*args, **{**named, "pin_memory": None} if pins else named)
        return _pinned_tensor(made) if pins else made
    LOG.operations += 1
    _note(operation, args, named, tensors, target)
    if name == "_efficientzerotensor":
        # It has no memory, and only torch's own tensors say so.
        operation = torch.ops.aten.zeros.default
    output = operation(*changed(_values, args), **_on_cpu(named))
    if (target is not None and not to_gpu) or not isinstance(output, Tensor | tuple | list):
        return output
    written = args[0] if operation._schema.is_mutable and args else None
    if isinstance(written, Tensor) and not on_gpu(written):
        return written
    made = changed(lambda leaf: PretendedTensor(leaf) if isinstance(leaf, Tensor) else leaf, output)
    return return_and_correct_aliasing(operation, args, named, made)


def _note(
    operation: Any,
    args: Sequence[Any],
    named: Mapping[str, Any],
    tensors: Sequence[Tensor],
    target: torch.device | None,
) -> None:
    name = name_of(operation)
    some, every = any(map(on_gpu, tensors)), all(map(on_gpu, tensors))
    if some and not every and mixes(operation, args, tensors, on_gpu):
        shapes = [tuple(tensor.shape) for tensor in tensors if not on_gpu(tensor)]
        LOG.mix(f"{name} of GPU tensors with host tensors {shapes}")
    elif name == "copy_":
        asked = named.get("non_blocking", args[2] if len(args) > 2 else False)
        _note_transfer(args[1], on_gpu(args[0]), asked)
    elif name == "_to_copy" and (target is None or target.type != "meta"):
        into_gpu = on_gpu(args[0]) if target is None else target.type == "cuda"
        _note_transfer(args[0], into_gpu, named.get("non_blocking", False))
    elif (what := waits(name, args, named)) is not None:
        LOG.wait(what)
    elif name.startswith(("index", "_index_put", "_unsafe_index")) and some and not every:
        LOG.copy(f"{name} by host indices or values")
    if adds_in_any_order(name, args, named):
        LOG.add_unordered(name)


def _note_transfer(source: Tensor, into_gpu: bool, asked_not_to_wait: bool) -> None:
    """The host waits, unless it asked not to and the source is in pinned memory."""
    if on_gpu(source) == into_gpu:
        return
    if not (into_gpu and asked_not_to_wait and is_pinned(source)):
        LOG.copy("copy to the GPU" if into_gpu else "copy to the host")


def note_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *_: Any, **__: Any
) -> None:
    """With a mask, CUDA takes its memory-efficient kernel, whose backward pass is unordered."""
    allowed = torch.backends.cuda.mem_efficient_sdp_enabled()
    if allowed and attn_mask is not None and torch.is_grad_enabled() and query.requires_grad:
        LOG.add_unordered("masked attention's backward pass")


def is_pinned(tensor: Tensor) -> bool:
    """Whether a host tensor lies in memory that was pinned."""
    return not on_gpu(tensor) and tensor.untyped_storage().data_ptr() in _pinned


def _pinned_tensor(tensor: Tensor) -> Tensor:
    """Takes the memory of a new tensor for pinned."""
    _kept.append(tensor)
    _pinned.add(tensor.untyped_storage().data_ptr())
    return tensor


PINNING: dict[str, Callable[[Tensor], Any]] = {
    "is_pinned": is_pinned,
    "_pin_memory": lambda tensor: _pinned_tensor(tensor.clone()),
}


def _values(leaf: Any) -> Any:
    return leaf.values if isinstance(leaf, PretendedTensor) else leaf


def _on_cpu(named: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the CPU takes them."""
    on_cpu = {name: changed(_values, value) for name, value in named.items()}
    if on_cpu.get("device") is not None and torch.device(on_cpu["device"]).type == "cuda":
        on_cpu["device"] = torch.device("cpu")
    on_cpu.pop("pin_memory", None)
    return on_cpu


# An operation's arguments nest in lists and tuples alone, and torch's functions for all kinds of
# trees would take half of a walk.


def changed(change: Callable[[Any], Any], nested: Any) -> Any:
    """Lists and tuples with every value in them changed."""
    kind = type(nested)
    if kind is tuple or kind is list:
        return kind(changed(change, part) for part in nested)
    return change(nested)


def tensors_in(nested: Iterable[Any]) -> Iterator[Tensor]:
    """All tensors in lists and tuples."""
    for part in nested:
        if isinstance(part, Tensor):
            yield part
        elif isinstance(part, list | tuple):
            yield from tensors_in(part)
