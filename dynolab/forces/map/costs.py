"""The operations and bytes that a force map takes, and the memory that it may take."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch

from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces.function.rules import Rule
from dynolab.forces.map.weighted import WeightedResponse

LEAST_BYTES = 2**30
"""What a map takes by default wherever it runs."""

_GROUP, _MEMORY = Path("/sys/fs/cgroup"), Path("/proc/meminfo")

Order = Literal["formed", "kernel", "kernel_swapped"]
Shape = tuple[int, int]
"""Response tokens and positions of one sequence."""


def shapes_of(sequences: Sequence[Encoded]) -> list[Shape]:
    """Response tokens of each sequence, and its positions without the last, which predicts none."""
    return [(sequence.response_length, len(sequence.ids) - 1) for sequence in sequences]


def formed_flops(
    observed: Sequence[Shape], updating: Sequence[Shape], d_in: int, d_out: int
) -> int:
    """Order (i): `2 d_in d_out (Σ_o M T_o + Σ_u L T_u)` to form, then `2 d_in d_out ΣM ΣL`."""
    forming = sum(tokens * positions for tokens, positions in (*observed, *updating))
    M, L = (sum(tokens for tokens, _ in side) for side in (observed, updating))
    return 2 * d_in * d_out * (forming + M * L)


def kernel_flops(
    observed: Sequence[Shape], updating: Sequence[Shape], d_in: int, d_out: int
) -> int:
    """Order (iii), per pair: `2 T_o T_u d_in + 2 d_out (L T_o T_u + M L T_o)`.

    Summing all position pairs of one token pair instead, `2 T_o T_u d_out` for each (m, l), costs
    `1/(1/M + 1/T_u)` times as much: never noticeably less, so it is not offered.
    """
    L = sum(tokens for tokens, _ in updating)
    T_o, T_u = (sum(positions for _, positions in side) for side in (observed, updating))
    LT_u = sum(tokens * positions for tokens, positions in updating)
    MT_o = sum(tokens * positions for tokens, positions in observed)
    return 2 * T_o * T_u * d_in + 2 * d_out * (T_o * LT_u + MT_o * L)


def cheapest_order(
    observed: Sequence[Shape], updating: Sequence[Shape], d_in: int, d_out: int
) -> Order:
    """The cheapest order of contraction of one matrix.

    Operations of the kernel orders count twice: their many small products reach half the speed
    of one large product at best.
    """
    costs: dict[Order, int] = {
        "formed": formed_flops(observed, updating, d_in, d_out),
        "kernel": 2 * kernel_flops(observed, updating, d_in, d_out),
        "kernel_swapped": 2 * kernel_flops(updating, observed, d_in, d_out),
    }
    return min(costs, key=lambda order: costs[order])


def factor_bytes(rules: Sequence[Rule], shape: Shape, item: int) -> int:
    """Bytes of one sequence's factors: a matrix's inputs T d_in and signals M T d_out, a table's
    rows at most M T d, the head's M (d + V); a vector's gradients in full, M d.
    """
    tokens, positions = shape
    numbers = 0
    for rule in rules:
        d_in, d_out = rule.sizes
        if rule.kind == "linear" and rule.local:
            numbers += tokens * (d_in + d_out)
        elif rule.kind == "linear":
            numbers += positions * d_in + tokens * positions * d_out
        elif rule.kind == "embedding":
            numbers += tokens * positions * d_out
        numbers += tokens * d_out * (rule.kind == "norm") + tokens * d_out * (rule.bias is not None)
    return numbers * item


def slice_width(workspace: int, unit: int, most: int) -> int:
    """How many units of `unit` bytes fit into the workspace: at least one, at most `most`."""
    return max(1, min(most, workspace // unit))


def split_to_fit(
    size: Callable[[Encoded], int], response: WeightedResponse, room: int
) -> list[WeightedResponse]:
    """Splits a response into spans of tokens whose factors fit into `room` bytes.

    A token depends only on those before it, so a span is the same sequence, cut after the span's
    last token, with everything before its first token counted as prompt.
    """
    spans, start, end = [], 0, len(response.weights)
    while start < end:
        stop = end
        while (bytes_ := size((span := response.span(start, stop)).sequence)) > room:
            if stop == start + 1:
                raise ConfigError(
                    "memory_bytes",
                    8 * room,
                    f"one token's factors take {bytes_} bytes; give at least {8 * bytes_}",
                )
            stop = start + (stop - start) // 2
        spans.append(span)
        start = stop
    return spans


def memory_for(device: torch.device, bound: int | None = None) -> int:
    """`bound` bytes; by default half of what is free on the device, at least `LEAST_BYTES`.

    The ranks of a host share its main memory.
    """
    if bound is not None:
        return bound
    free = free_bytes(device)
    if device.type == "cpu":
        free //= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return max(LEAST_BYTES, free // 2)


def free_bytes(device: torch.device) -> int:
    """What new tensors may take of a GPU, or of this host's memory.

    Of a host's that is what its container (cgroup v2) and this process may still take, if less.
    File caches give way to tensors, and count as free.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    lines = (line.split() for line in _MEMORY.read_text().splitlines())
    free = 1024 * int(next(line[1] for line in lines if line[0] == "MemAvailable:"))
    with suppress(OSError, ValueError):  # no container, or one without a limit: "max"
        limit = int((_GROUP / "memory.max").read_text())
        kinds = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        in_use = int((_GROUP / "memory.current").read_text()) - int(kinds["inactive_file"])
        free = min(free, limit - in_use)
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit != resource.RLIM_INFINITY:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        free = min(free, limit - pages * resource.getpagesize())
    return free
