"""A pretended GPU: tensors that report `cuda:0` and whose values are real ones of the CPU.

torch has a backend that is written in Python (`privateuseone`), with the guard and hooks that
autograd asks for. Tensors here are of that backend; `MachineWithGPU` lets programs see them as CUDA
tensors. Every operation on one goes through `run`, which counts in `LOG` what a GPU would refuse,
wait for or add in any order, and computes on the CPU.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import safetensors.torch
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

PROJECT, OWN = Path(__file__).parents[2], Path(__file__)

_setup_privateuseone_for_python_backend("pretended")
GPU, BACKEND = torch.device("cuda", 0), torch.device("pretended", 0)
"""The device that programs see, and the one that torch itself sees."""

LOG: dict[str, Counter[str]] = {
    kind: Counter() for kind in ("operations", "mixed", "copies", "waits", "unordered")
}
"""Counts by operation and line of the project, such as `nonzero at dynolab/data/x.py:12`.

- `mixed`: operations on tensors of two devices, which a GPU refuses.
- `waits`: operations for which the host waits until the GPU is done; `copies`: those of them that
  are transfers.
- `unordered`: operations that add in an order which differs from run to run.
"""

_pinned: dict[int, Tensor] = {}
"""Tensors in pinned memory by address, kept so that no address is given to another one."""

# What CUDA does with an operation of torch: which devices it takes, and whether the host waits.
TRANSFERS = {"_to_copy", "copy_", "_foreach_copy_"}
BUILT_ON_THE_HOST = {"lift_fresh", "detach", "set_"}
INDEXED = {"index", "_unsafe_index"}
ASSIGNED = {"index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"}
TAKES_SCALARS = ("_foreach_", "where", "fill", "masked_fill", "lerp")
READ_BY_THE_HOST = {
    "_local_scalar_dense",
    "bincount",
    "equal",
    "histc",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "_unique",
    "_unique2",
    "unique_consecutive",
    "unique_dim",
    "_linalg_eigh",  # reads whether it has converged
    "_linalg_check_errors",
    "linalg_cholesky_ex",
}
"""Operations whose result, or its size, the host waits for."""
SORTED_ON_REQUEST = {
    "index_add",
    "index_add_",
    "scatter_add",
    "scatter_add_",
    "scatter_reduce",
    "scatter_reduce_",
}
"""Operations that add in a fixed order under `torch.use_deterministic_algorithms`, by its docs."""


class PretendedTensor(torch.Tensor):
    """A tensor on the pretended GPU; `values` has its numbers."""

    values: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor) -> PretendedTensor:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            layout=values.layout,
            device=BACKEND,
        )
        made.values = values
        return made

    def __repr__(self, **_: Any) -> str:
        return f"on the pretended GPU: {self.values!r}"

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: Sequence[Any] = (), named: Any = None
    ) -> Any:
        return run(operation, args, named or {})


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Sequence[Any] = (), named: Any = None
    ) -> Any:
        return run(operation, args, named or {})


class _SeenAsCuda(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), named: Any = None
    ) -> Any:
        named = named or {}
        if function == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
            return GPU if on_gpu(args[0]) else function(*args)
        if function is torch.device:
            return function(*args, **named)
        if function is torch.Tensor.tolist and on_gpu(args[0]):
            note("waits", "tolist")
            return args[0].values.tolist()
        if function is torch.nn.functional.scaled_dot_product_attention:
            _note_attention(*args, **named)
        return function(
            *map(_backend, args), **{key: _backend(each) for key, each in named.items()}
        )


def _backend(value: Any) -> Any:
    is_gpu = isinstance(value, torch.device | str) and str(value).startswith("cuda")
    return BACKEND if is_gpu else value


@contextmanager
def machine_with_gpu() -> Iterator[None]:
    """This process is one on a machine with a GPU, as far as a program can see."""
    answers: dict[str, Any] = {
        "_lazy_init": None,
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "set_device": None,
        "synchronize": None,
        "empty_cache": None,
        "mem_get_info": (2**33, 2**34),
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "reset_peak_memory_stats": None,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
        "is_bf16_supported": True,
        "get_device_capability": (9, 0),
        "get_device_name": "pretended GPU",
        "get_device_properties": SimpleNamespace(
            name="pretended GPU", total_memory=2**34, major=9, minor=0, multi_processor_count=1
        ),
    }
    # A mode belongs to a thread, and backward passes would run in others.
    torch.autograd.set_multithreading_enabled(False)
    # `torch.tensor(…, device="cuda")` makes a host tensor and copies it, as it does with a GPU.
    torch._C._set_only_lift_cpu_tensors(True)
    # A parameter stays the same object when its module moves, as on a GPU, so that ties hold.
    torch.__future__.set_swap_module_params_on_conversion(True)
    with ExitStack() as patched:
        for name, answer in answers.items():
            patched.enter_context(
                patch.object(torch.cuda, name, lambda *_, answer=answer, **__: answer)
            )
        # safetensors looks at a tensor's memory to find out which ones share it.
        for name in ("storage_ptr", "storage_size"):
            original = getattr(safetensors.torch, name)
            of_values = lambda tensor, original=original: original(_values(tensor))  # noqa: E731
            patched.enter_context(patch.object(safetensors.torch, name, of_values))
        patched.enter_context(_SeenAsCuda())
        patched.enter_context(_Operations())
        yield


def run(operation: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Computes an operation of torch on the CPU and notes what a GPU would do."""
    name = str(operation._schema.name).rpartition("::")[2]
    if name == "is_pinned":
        return _is_pinned(args[0])
    if name == "_pin_memory":
        return _pin(args[0].clone())
    pins = bool(named.get("pin_memory"))
    tensors = [*_tensors_in(args), *_tensors_in(named.values())]
    target = None if named.get("device") is None else torch.device(named["device"])
    to_gpu = target is not None and target.type == BACKEND.type
    if not to_gpu and not any(map(on_gpu, tensors)):
        made = operation(*args, **{**named, "pin_memory": None} if pins else named)
        return _pin(made) if pins else made
    LOG["operations"][name] += 1
    _note(operation, name, args, named, tensors, target)
    if name == "_efficientzerotensor":
        # It has no memory, and only torch's own tensors say so.
        operation = torch.ops.aten.zeros.default
    on_cpu = {key: _changed(_values, value) for key, value in named.items() if key != "pin_memory"}
    if to_gpu:
        on_cpu["device"] = torch.device("cpu")
    output = operation(*_changed(_values, args), **on_cpu)
    if (target is not None and not to_gpu) or not isinstance(output, Tensor | tuple | list):
        return output
    written = args[0] if operation._schema.is_mutable and args else None
    if isinstance(written, Tensor) and not on_gpu(written):
        return written
    made = _changed(
        lambda leaf: PretendedTensor(leaf) if isinstance(leaf, Tensor) else leaf, output
    )
    return return_and_correct_aliasing(operation, args, named, made)


def _note(
    operation: Any,
    name: str,
    args: Sequence[Any],
    named: Mapping[str, Any],
    tensors: Sequence[Tensor],
    target: torch.device | None,
) -> None:
    on_host = [tensor for tensor in tensors if not on_gpu(tensor)]
    some = len(on_host) < len(tensors)
    if some and on_host and _mixes(operation, name, args, on_host):
        note(
            "mixed", f"{name} of GPU tensors with host tensors {[tuple(t.shape) for t in on_host]}"
        )
    elif name == "copy_":
        asked = named.get("non_blocking", args[2] if len(args) > 2 else False)
        _note_transfer(args[1], on_gpu(args[0]), asked)
    elif name == "_to_copy" and (target is None or target.type != "meta"):
        into_gpu = on_gpu(args[0]) if target is None else target.type == BACKEND.type
        _note_transfer(args[0], into_gpu, named.get("non_blocking", False))
    elif _waits(name, args, named):
        note("waits", name)
    elif name.startswith(("index", "_index_put", "_unsafe_index")) and some and on_host:
        _note_copy(f"{name} by host indices or values")
    if _adds_in_any_order(name, args):
        note("unordered", name)


def _mixes(operation: Any, name: str, args: Sequence[Any], on_host: Sequence[Tensor]) -> bool:
    """Whether an operation on tensors of both devices is one that CUDA refuses."""
    if name in TRANSFERS | BUILT_ON_THE_HOST:
        return False
    if name in INDEXED | ASSIGNED:
        # Indices may be on the host, and a single value to assign.
        values = [args[2]] if name in ASSIGNED else []
        return not on_gpu(args[0]) or any(v.dim() > 0 and not on_gpu(v) for v in values)
    takes_scalars = torch.Tag.pointwise in operation.tags or name.startswith(TAKES_SCALARS)
    return not takes_scalars or any(tensor.dim() > 0 for tensor in on_host)


def _waits(name: str, args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether the host waits for an operation on the GPU, transfers apart."""
    if name == "repeat_interleave":
        return named.get("output_size") is None
    if name not in INDEXED | ASSIGNED:
        return name in READ_BY_THE_HOST
    if name in ASSIGNED and args[2].numel() == 1:
        return False  # fills, without counting the places
    masks = (torch.bool, torch.uint8)
    return any(isinstance(index, Tensor) and index.dtype in masks for index in args[1])


def _adds_in_any_order(name: str, args: Sequence[Any]) -> bool:
    """Whether the sums depend on the order of the GPU's threads.

    Assigning with `accumulate` does not: CUDA sorts the indices first. Sums of integers never do.
    """
    if name in SORTED_ON_REQUEST and torch.are_deterministic_algorithms_enabled():
        return False
    return name in {*SORTED_ON_REQUEST, "cumsum", "histc"} and bool(args[0].is_floating_point())


def _note_transfer(source: Tensor, into_gpu: bool, asked_not_to_wait: bool) -> None:
    """The host waits, unless it asked not to and the source is in pinned memory."""
    if on_gpu(source) == into_gpu:
        return
    if not (into_gpu and asked_not_to_wait and _is_pinned(source)):
        _note_copy("copy to the GPU" if into_gpu else "copy to the host")


def _note_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *_: Any, **__: Any
) -> None:
    """With a mask, CUDA takes its memory-efficient kernel, whose backward pass is unordered."""
    allowed = on_gpu(query) and torch.backends.cuda.mem_efficient_sdp_enabled()
    if allowed and attn_mask is not None and torch.is_grad_enabled() and query.requires_grad:
        note("unordered", "masked attention's backward pass")


def _note_copy(what: str) -> None:
    note("copies", what)
    note("waits", what)


def note(kind: str, what: str) -> None:
    """Counts something at the innermost line of the project that is running; in a backward pass
    this is the line that started it."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file != OWN and file.is_relative_to(PROJECT) and "site-packages" not in file.parts:
            what = f"{what} at {file.relative_to(PROJECT)}:{frame.f_lineno}"
            break
        frame = frame.f_back
    LOG[kind][what] += 1


def on_gpu(tensor: object) -> bool:
    """Whether a tensor is on the pretended GPU."""
    return isinstance(tensor, PretendedTensor)


def _is_pinned(tensor: Tensor) -> bool:
    return not on_gpu(tensor) and tensor.untyped_storage().data_ptr() in _pinned


def _pin(tensor: Tensor) -> Tensor:
    _pinned[tensor.untyped_storage().data_ptr()] = tensor
    return tensor


def _values(leaf: Any) -> Any:
    return leaf.values if isinstance(leaf, PretendedTensor) else leaf


# An operation's arguments nest in lists and tuples alone, and torch's functions for all kinds of
# trees would take half of a walk.


def _changed(change: Callable[[Any], Any], nested: Any) -> Any:
    kind = type(nested)
    if kind is tuple or kind is list:
        return kind(_changed(change, part) for part in nested)
    return change(nested)


def _tensors_in(nested: Iterable[Any]) -> Iterator[Tensor]:
    for part in nested:
        if isinstance(part, Tensor):
            yield part
        elif isinstance(part, list | tuple):
            yield from _tensors_in(part)
