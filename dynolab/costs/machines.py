"""Machines that a plan can be made for, and whether one has what a stage takes."""

from __future__ import annotations

import math
import os
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Thread
from typing import TYPE_CHECKING, Any

from dynolab.errors import ConfigError

if TYPE_CHECKING:
    import torch


GPUS_PER_HOST = 8
"""GPUs of a host, as in NVIDIA's DGX and HGX; a machine of more is several hosts."""


@dataclass(frozen=True)
class Machine:
    """`devices` GPUs, or one host without any.

    - `device_bytes`: what each GPU's tensors may take; `host_bytes`: main memory of a host.
    - `fp32`, `bf16`: floating-point operations per second of one GPU's datasheet, or what a large
      model reaches on this host's CPUs. fp32 is IEEE's: TF32 rounds factors, which
      `check_float32_products` refuses.
    - `link`: bytes per second that a rank sends to others of its host, in one direction; `network`:
      that a host sends to others.
    - `disk`: bytes per second that are written or read.
    - `source`: where the figures are from.
    """

    name: str
    devices: int
    device_bytes: int
    host_bytes: int
    fp32: float
    bf16: float
    link: float
    network: float
    disk: float
    source: str

    @property
    def gpus(self) -> bool:
        """Whether ranks have GPUs."""
        return self.devices > 0

    def token_seconds(self, parameters: int, dtype: str = "fp32") -> float:
        """Of a token's forward and backward, 6 operations a weight."""
        speed = self.bf16 if dtype == "bf16" else self.fp32
        return 6 * parameters / (speed * (REACHED[dtype] if self.gpus else 1.0))

    def sending_seconds(self, sent: float, ranks: int) -> float:
        """Of collectives of some ranks, each of which sends so many bytes round rings.

        A ring leaves each host once, so that the host's GPUs have `network` together.
        """
        speed = self.link if ranks <= GPUS_PER_HOST else min(self.link, self.network)
        return sent / (speed * (REACHED["link"] if self.gpus else 1.0))


USABLE = 0.94
"""Part of a GPU's memory that tensors get: CUDA's context, NCCL's buffers and gaps between tensors
take the rest. Not measured: an allowance."""

_GPUS = {
    "l40s": (48, 91.6e12, 362e12, 32e9, 50e9, "NVIDIA L40S datasheet"),
    "rtx4090": (
        24,
        82.6e12,
        165.2e12,
        32e9,
        3.125e9,
        "NVIDIA Ada GPU architecture whitepaper, GeForce RTX 4090",
    ),
    "a100": (80, 19.5e12, 312e12, 300e9, 200e9, "NVIDIA A100 80GB datasheet"),
    "h100": (80, 67e12, 989e12, 450e9, 400e9, "NVIDIA H100 SXM datasheet"),
    "h200": (141, 67e12, 989e12, 450e9, 400e9, "NVIDIA H200 SXM datasheet"),
}
"""GPU → decimal GB of memory, dense operations per second in fp32 and in bf16, bytes per second of
`Machine.link` and of `Machine.network`, and the source.

Links are the datasheets' NVLink (600 and 900 GB/s in both directions) or 16 lanes of PCIe 4.0. A
GeForce's driver sends through main memory, which can be slower. Networks are eight of 200 Gb/s
(NVIDIA DGX A100 datasheet), eight of 400 Gb/s (DGX H100 and H200 user guide), 400 Gb/s (Amazon EC2
g6e.48xlarge, eight L40S), and of hosts of GeForces 25 Gb/s, an assumption."""

REACHED = {"fp32": 0.6, "bf16": 0.4, "link": 0.8}
"""Part of a GPU's datasheet speed that trainings are taken to reach; of CPUs, half of the speed of
large matrix products. Links lose a fifth to their protocol: NCCL's rings reach 370 of an H100's 450
GB/s (its maintainers, https://github.com/NVIDIA/nccl-tests/issues/212)."""

DISK = 1e9
"""Bytes per second of named machines' disks: an assumption, of NVMe and a sha256 of all that is
written or read."""

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
        link=_copy_speed(devices) if devices else _gloo_speed(),
        network=math.inf,  # it is one host
        disk=_disk_speed(),
        source=f"{name}; products, links and disk timed now",
    )


def _speed(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of square matrix products, the best of three."""
    import torch

    size = 8192 if device.type == "cuda" else 768
    left = torch.ones(size, size, dtype=dtype, device=device)
    return 2 * size**3 / _least_seconds(lambda: (left @ left)[0, 0].item())


def _least_seconds(
    work: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Of three runs."""
    seconds = []
    for _ in range(3):
        began = clock()
        work()
        seconds.append(clock() - began)
    return min(seconds)


_SENT = 2**24
"""Bytes whose way is timed."""


def _copy_speed(devices: int) -> float:
    """Bytes per second from one GPU to another, if there is one."""
    import torch

    if devices == 1:
        return math.inf
    size = 16 * _SENT
    sent, received = (torch.ones(size, dtype=torch.uint8, device=f"cuda:{n}") for n in (0, 1))
    return size / _least_seconds(lambda: received.copy_(sent)[0].item())


def _gloo_speed() -> float:
    """Bytes per second that each of two ranks on CPUs sends in an all-reduce, adding included.

    By the processor time of both, so that other programs change nothing.
    """
    import torch
    import torch.distributed as dist

    gloo: Any = dist.ProcessGroupGloo  # whose stub lacks what follows
    store, seconds, options = dist.HashStore(), list[float](), gloo._Options()
    # By default it listens at the address of the host's name.
    options._devices = [gloo.create_device(hostname="127.0.0.1")]

    def rank(number: int) -> None:
        group = gloo(store, number, 2, options)
        values = torch.ones(_SENT // 4)
        both = _least_seconds(lambda: group.allreduce([values]).wait(), time.process_time)
        seconds.append(both / 2)

    others = [Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join()
    return _SENT / max(seconds)


def _disk_speed() -> float:
    """Bytes per second that are written, to the disk of temporary files."""
    content = os.urandom(_SENT)
    with tempfile.TemporaryFile() as file:

        def write() -> None:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

        return _SENT / _least_seconds(write)


def machine_named(name: str) -> Machine:
    """A machine by its name: a GPU and how many of them, such as `h100x8`.

    **Raises:** `ConfigError` for a name that is not known.
    """
    match = re.fullmatch(r"(\w+?)(?:x([1-9]\d?))?", name)
    if match is None or match[1] not in _GPUS:
        names = ", ".join(f"{gpu}, {gpu}x8" for gpu in _GPUS)
        raise ConfigError("--machine", name, f"is not known; give one of {names} or another number")
    size, fp32, bf16, link, network, source = _GPUS[match[1]]
    count = int(match[2] or 1)
    return Machine(
        name=name,
        devices=count,
        device_bytes=int(size * 10**9 * USABLE),
        host_bytes=min(count, GPUS_PER_HOST) * HOST_BYTES_PER_GPU,
        fp32=fp32,
        bf16=bf16,
        link=link,
        network=network,
        disk=DISK,
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
      main memory. `host_bytes`: main memory beside that, of all ranks of a host.
    - `read`, `written`: bytes of the disk.
    - `hours`: of computing, of sending between ranks (`sending_hours`) and of the disk
      (`disk_hours`), one after another: nothing is taken to overlap.
    """

    parameters: int = 0
    tokens: int = 0
    ranks: int = 1
    rank_bytes: int = 0
    host_bytes: int = 0
    read: int = 0
    written: int = 0
    hours: float = 0.0
    sending_hours: float = 0.0
    disk_hours: float = 0.0

    def with_disk(self, machine: Machine) -> StageCost:
        """The same with the hours of its bytes on the machine's disk."""
        disk_hours = (self.read + self.written) / machine.disk / 3600
        return replace(self, hours=self.hours + disk_hours, disk_hours=disk_hours)

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


def gigabytes(size: float) -> str:
    """Decimal gigabytes, such as `12.3 GB`."""
    return f"{size / 1e9:.1f} GB"
