"""How much memory is free, and how much of it a force map may take."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

import torch

LEAST_BYTES = 2**30
"""What a map takes by default wherever it runs."""

_GROUP, _MEMORY = Path("/sys/fs/cgroup"), Path("/proc/meminfo")


def memory_for(device: torch.device, wanted: int | None = None) -> int:
    """`wanted` bytes; by default half of what is free on the device, at least `LEAST_BYTES`.

    The ranks of a host share its main memory.
    """
    if wanted is not None:
        return wanted
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
        taken = int((_GROUP / "memory.current").read_text()) - int(kinds["inactive_file"])
        free = min(free, limit - taken)
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit != resource.RLIM_INFINITY:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        free = min(free, limit - pages * resource.getpagesize())
    return free
