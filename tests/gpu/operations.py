"""What CUDA does with an operation of torch: which devices it takes, and whether the host waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

TRANSFERS = {"_to_copy", "copy_", "_foreach_copy_"}
BUILT_ON_THE_HOST = {"lift_fresh", "detach", "set_"}
INDEXED = {"index", "_unsafe_index"}
ASSIGNED = {"index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"}

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
"""Those that add in a fixed order under `torch.use_deterministic_algorithms`, by its docs."""

ADDED_IN_ANY_ORDER = SORTED_ON_REQUEST | {"cumsum", "histc"}

TakesTensor = Callable[[Tensor], bool]


def name_of(operation: Any) -> str:
    """Such as `index_put_` of `aten::index_put_.default`."""
    return str(operation._schema.name).rpartition("::")[2]


def mixes(
    operation: Any, args: Sequence[Any], tensors: Sequence[Tensor], on_gpu: TakesTensor
) -> bool:
    """Whether an operation on tensors of both devices is one that CUDA refuses."""
    name = name_of(operation)
    if name in TRANSFERS | BUILT_ON_THE_HOST:
        return False
    on_host = [tensor for tensor in tensors if not on_gpu(tensor)]
    if name in INDEXED | ASSIGNED:
        # Indices may be on the host, and a single value to assign.
        values = [args[2]] if name in ASSIGNED else []
        return not on_gpu(args[0]) or any(v.dim() > 0 and not on_gpu(v) for v in values)
    takes_scalars = torch.Tag.pointwise in operation.tags or name.startswith(
        ("_foreach_", "where", "fill", "masked_fill", "lerp")
    )
    return not takes_scalars or any(tensor.dim() > 0 for tensor in on_host)


def waits(name: str, args: Sequence[Any], named: Mapping[str, Any]) -> str | None:
    """What the host waits for in an operation on the GPU, transfers apart; None if nothing."""
    if name in READ_BY_THE_HOST:
        return name
    if name == "repeat_interleave" and named.get("output_size") is None:
        return "repeat_interleave without output_size"
    if name not in INDEXED | ASSIGNED:
        return None
    if name in ASSIGNED and args[2].numel() == 1:
        return None  # fills, without counting the places
    indices = [index for index in args[1] if isinstance(index, Tensor)]
    if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
        return f"{name} by a mask"
    return None


def adds_in_any_order(name: str, args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether the operation's sums depend on the order of the GPU's threads.

    Assigning with `accumulate` does not: CUDA sorts the indices first.
    """
    if name in SORTED_ON_REQUEST and torch.are_deterministic_algorithms_enabled():
        return False
    if name == "put_":
        adds = bool(named.get("accumulate", len(args) > 3 and args[3]))
    elif name == "bincount":
        adds = len(args) > 1 or "weights" in named
    else:
        adds = name in ADDED_IN_ANY_ORDER
    # Sums of integers are the same in any order.
    return adds and args[0].is_floating_point()
