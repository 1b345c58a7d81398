"""What one stage takes, and whether a machine has it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dynolab.costs.machines import Machine

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
        whole = self.host_bytes + (0 if machine.gpus else self.ranks * self.rank_bytes)
        if whole > machine.host_bytes:
            return (
                f"needs {gigabytes(whole)} of main memory, and {machine.name} has "
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
