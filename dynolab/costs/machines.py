"""Machines that a plan can be made for, and whether one has what a stage takes."""

from __future__ import annotations

import math
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynolab.errors import ConfigError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Machine:
    """One host: `devices` GPUs, or none.

    - `device_bytes`: what each GPU's tensors may take; `host_bytes`: main memory.
    - `fp32`, `bf16`: floating-point operations per second of one GPU's datasheet, or what a large
      model reaches on this host's CPUs. fp32 is IEEE's: TF32 rounds factors, which
      `check_float32_products` refuses.
    - `source`: where the figures are from.
    """

    name: str
    devices: int
    device_bytes: int
    host_bytes: int
    fp32: float
    bf16: float
    source: str

    @property
    def gpus(self) -> bool:
        """Whether ranks have GPUs."""
        return self.devices > 0

    def token_seconds(self, parameters: int, dtype: str = "fp32") -> float:
        """Of a token's forward and backward, 6 operations a weight."""
        speed = self.bf16 if dtype == "bf16" else self.fp32
        return 6 * parameters / (speed * (REACHED[dtype] if self.gpus else 1.0))


USABLE = 0.94
"""Part of a GPU's memory that tensors get: CUDA's context, NCCL's buffers and gaps between tensors
take the rest. Not measured: an allowance."""

_GPUS = {
    "l40s": (48, 91.6e12, 362e12, "NVIDIA L40S datasheet"),
    "rtx4090": (24, 82.6e12, 165.2e12, "NVIDIA Ada GPU architecture whitepaper, GeForce RTX 4090"),
    "a100": (80, 19.5e12, 312e12, "NVIDIA A100 80GB datasheet"),
    "h100": (80, 67e12, 989e12, "NVIDIA H100 SXM datasheet"),
    "h200": (141, 67e12, 989e12, "NVIDIA H200 SXM datasheet"),
}
"""GPU → decimal GB of memory, dense operations per second in fp32 and in bf16, and the source."""

REACHED = {"fp32": 0.6, "bf16": 0.4}
"""Part of a GPU's datasheet speed that trainings are taken to reach; of CPUs, half of the speed of
large matrix products."""

HOST_BYTES_PER_GPU = 256 * 10**9
"""Main memory beside each GPU: 2 TB in NVIDIA's hosts of eight (DGX A100, H100, H200)."""


def this_machine() -> Machine:
    """The machine that this process runs on, with the speed of its matrix products."""
    import psutil
    import torch

    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory
        devices, name = torch.cuda.device_count(), torch.cuda.get_device_name(0)
    else:
        devices, memory, name = 0, 0, f"{os.cpu_count()} CPU cores"
    device, reached = torch.device("cuda" if devices else "cpu"), 1 if devices else 0.5
    return Machine(
        name="this machine",
        devices=devices,
        device_bytes=int(memory * USABLE),
        host_bytes=psutil.virtual_memory().total,
        fp32=reached * _speed(device, torch.float32),
        bf16=reached * _speed(device, torch.bfloat16 if devices else torch.float32),
        source=f"{name}; products timed now",
    )


def _speed(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of square matrix products, the best of three."""
    import torch

    size = 8192 if device.type == "cuda" else 768
    left = torch.ones(size, size, dtype=dtype, device=device)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        (left @ left)[0, 0].item()
        seconds.append(time.perf_counter() - began)
    return float(2 * size**3 / min(seconds))


def machine_named(name: str) -> Machine:
    """A machine by its name: a GPU and how many of them, such as `h100x8`.

    **Raises:** `ConfigError` for a name that is not known.
    """
    match = re.fullmatch(r"(\w+?)(?:x([1-9]\d?))?", name)
    if match is None or match[1] not in _GPUS:
        names = ", ".join(f"{gpu}, {gpu}x8" for gpu in _GPUS)
        raise ConfigError("--machine", name, f"is not known; give one of {names} or another number")
    size, fp32, bf16, source = _GPUS[match[1]]
    count = int(match[2] or 1)
    return Machine(
        name=name,
        devices=count,
        device_bytes=int(size * 10**9 * USABLE),
        host_bytes=count * HOST_BYTES_PER_GPU,
        fp32=fp32,
        bf16=bf16,
        source=source,
    )


UNTIMED_SECONDS = 30.0
"""Of a study on CPUs: starting processes, reading files and drawing pages."""


@dataclass(frozen=True)
class StageCost:
    """What a stage takes.

    - `parameters`: of its model; `tokens`: positions that its forwards and backwards run over,
      padding included.
    - `rank_bytes`: most bytes of tensors on the device of each of its `ranks`; on CPUs these are
      main memory. `host_bytes`: main memory beside that, of all ranks.
    - `written`: bytes written to disk.
    """

    parameters: int = 0
    tokens: int = 0
    ranks: int = 1
    rank_bytes: int = 0
    host_bytes: int = 0
    written: int = 0
    hours: float = 0.0

    def lacks(self, machine: Machine) -> str | None:
        """What the machine is short of, for a message; None if the stage fits."""
        if machine.gpus and self.ranks > machine.devices:
            many = "1 GPU" if machine.devices == 1 else f"{machine.devices} GPUs"
            return f"runs {self.ranks} ranks, and {machine.name} has {many}"
        if machine.gpus and self.rank_bytes > machine.device_bytes:
            return (
                f"needs {gigabytes(self.rank_bytes)} on each rank's GPU, and {machine.name} has "
                f"{gigabytes(machine.device_bytes)} for tensors on each"
            )
        host_bytes = self.host_bytes + (0 if machine.gpus else self.ranks * self.rank_bytes)
        if host_bytes > machine.host_bytes:
            return (
                f"needs {gigabytes(host_bytes)} of main memory, and {machine.name} has "
                f"{gigabytes(machine.host_bytes)}"
            )
        return None


def duration(seconds: float) -> str:
    """Such as `12 s`, `3 min` or `2.5 h`."""
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def gigabytes(size: int) -> str:
    """Decimal gigabytes, such as `12.3 GB`."""
    return f"{size / 1e9:.1f} GB"
