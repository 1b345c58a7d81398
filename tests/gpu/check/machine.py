"""What the machine has."""

from __future__ import annotations

import os
import platform
from functools import cache

import torch

from tasks.runtime.launch.devices import gpus_visible, host_devices


@cache
def gpu_count() -> int:
    """GPUs that runs here may use; 0 where they compute on the CPU."""
    if os.environ.get("DS_ACCELERATOR") == "cpu" or not gpus_visible(os.environ):
        return 0
    return len(host_devices())


def facts() -> dict[str, str]:
    """Versions and names, for the page."""
    known = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "CUDA of torch": str(torch.version.cuda),
        "GPUs": str(gpu_count()),
    }
    if gpu_count() and torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(number)
            known[f"GPU {number}"] = (
                f"{properties.name}, {properties.total_memory / 1e9:.0f} GB, "
                f"capability {properties.major}.{properties.minor}"
            )
        known["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    return known
