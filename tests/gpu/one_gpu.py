"""Makes this process one on a machine with a GPU, as far as a program can see.

This cannot be undone: whoever calls it is a process of its own (`tests/gpu/walk.py`).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from tests.gpu.log import LOG
from tests.gpu.pretended import PretendedTensor


def become_machine_with_gpu() -> None:
    """Patches `torch.cuda` and how torch works with a GPU's tensors."""
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
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    # The mode belongs to a thread, and backward passes would run in others.
    torch.autograd.set_multithreading_enabled(False)
    # `torch.tensor(…, device="cuda")` makes a host tensor and copies it, as it does with a GPU.
    torch._C._set_only_lift_cpu_tensors(True)
    # A parameter stays the same object when its module moves, as on a GPU, so that ties hold.
    torch.__future__.set_swap_module_params_on_conversion(True)
    _patch_tolist()
    _patch_safetensors()


def _patch_tolist() -> None:
    """torch has no `tolist` for tensors of other classes."""
    of_host = torch.Tensor.tolist

    def tolist(tensor: Tensor) -> Any:
        if not isinstance(tensor, PretendedTensor):
            return of_host(tensor)
        LOG.wait("tolist")
        return tensor.values.tolist()

    torch.Tensor.tolist = tolist  # type: ignore[method-assign]


def _patch_safetensors() -> None:
    """safetensors looks at a tensor's memory to find out which ones share it."""
    for name in ("storage_ptr", "storage_size"):
        original = getattr(safetensors.torch, name)

        def of_values(tensor: Tensor, original: Any = original) -> int:
            return original(tensor.values if isinstance(tensor, PretendedTensor) else tensor)

        setattr(safetensors.torch, name, of_values)
