"""What one stage takes, and what stands behind each figure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dynolab.costs.machines import Machine

BASIS = {
    # memory_plan_error of python -m tests.benchmarks.size
    "a": "memory of trainings: counted; agrees with tensors of real trainings on 1 and 2 ranks, "
    "ZeRO 0-3, fp32 and bf16",
    # tests/costs/test_analyses.py
    "b": "memory of analyses: counted; agrees with their tensors",
    # tests/costs/test_operations.py
    "c": "operations: counted; agree with torch's count",
    "d": "operations: passes counted as the code makes them; not compared with a measurement",
    # store_plan_error of python -m tests.benchmarks.size
    "e": "bytes written: counted; agree with a study's store",
    "f": "rows: stand-ins of their lengths; the data set is not fetched",
    "g": "rows: not known, so each is as long as the limit allows; less is likely",
    # time_plan_error of python -m tests.benchmarks.size
    "h": "time: operations at half the speed of this machine's matrix products, timed now",
    "k": "time: operations at the speed of a forward and backward pass of this model, timed now; "
    "without starting processes and reading files",
    "i": "time: operations at the datasheet's speed times {fp32:.0%} in fp32 and {bf16:.0%} in "
    "bf16, and 2 ms a layer and micro-batch; assumed, never tried on such a machine",
    "j": "memory on GPUs: the same formulas with attention by plain products; never tried on "
    "such a machine, nor with more than 2 ranks",
}
"""Letter → what stands behind figures that bear it."""

REACHED = {"fp32": 0.6, "bf16": 0.4}
"""Part of a GPU's datasheet speed that trainings are taken to reach."""

LAYER_SECONDS = 2e-3
"""Of a layer's forward and backward on a GPU, at least: its kernels are started one by one."""

UNTIMED_SECONDS = 30.0
"""Of a study on CPUs: starting processes, reading files and drawing pages."""


@dataclass(frozen=True)
class StageCost:
    """What a stage takes.

    - `parameters`: of its model; `tokens`: positions that its forwards run over, padding included.
    - `rank_bytes`: most bytes of tensors on the device of each of its `ranks`; on CPUs these are
      main memory. `host_bytes`: main memory beside that, of all ranks.
    - `written`: bytes written to disk; `stored`: of these, what stays in the store.
    - `basis`: letters of `BASIS`.
    """

    parameters: int = 0
    tokens: int = 0
    flops: int = 0
    ranks: int = 1
    rank_bytes: int = 0
    host_bytes: int = 0
    written: int = 0
    stored: int = 0
    hours: float = 0.0
    basis: str = ""

    def lacks(self, machine: Machine) -> str | None:
        """What the machine is short of, for a message; None if the stage fits."""
        if machine.gpus and self.ranks > machine.devices:
            return f"runs {self.ranks} ranks, and {machine.name} has {_many(machine.devices)}"
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


def hours_of(flops: int, machine: Machine, *, ranks: int, dtype: str, starts: int = 0) -> float:
    """`flops / (ranks · speed)` and, on GPUs, the time to start the kernels of so many layers."""
    speed = machine.bf16 if dtype == "bf16" else machine.fp32
    if not machine.gpus:
        return flops / speed / 3600  # the ranks share the cores
    return (flops / (ranks * REACHED[dtype] * speed) + starts * LAYER_SECONDS) / 3600


def duration(seconds: float) -> str:
    """Such as `12 s`, `3 min` or `2.5 h`."""
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def gigabytes(size: int) -> str:
    """Decimal gigabytes, such as `12.3 GB`."""
    return f"{size / 1e9:.1f} GB"


def _many(devices: int) -> str:
    return "1 GPU" if devices == 1 else f"{devices} GPUs"
