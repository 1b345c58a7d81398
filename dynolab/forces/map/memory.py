"""How much memory a force map may take."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

import torch

LEAST_BYTES = 2**30
"""What a map takes by default wherever it runs."""

_GROUP = Path("/sys/fs/cgroup")


def memory_for(device: torch.device, wanted: int | None = None) -> int:
    """`wanted` bytes; by default half of what is free on the device, at least `LEAST_BYTES`.

    The ranks of a host share its main memory.
    """
    if wanted is not None:
        return wanted
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return max(LEAST_BYTES, free // 2)
    return max(LEAST_BYTES, _free_main_memory() // 2 // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def _free_main_memory() -> int:
    """Free bytes of this host, or of the container (cgroup v2) or process if it may take less."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no container, or one without a limit: "max"
        limit = int((_GROUP / "memory.max").read_text())
        free = min(free, limit - int((_GROUP / "memory.current").read_text()))
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit != resource.RLIM_INFINITY:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        free = min(free, limit - pages * resource.getpagesize())
    return free
