"""Shows a plan: which stages would run, what each takes on a machine, and what stands behind it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from dynolab.costs.machines import (
    GPUS_PER_HOST,
    UNTIMED_SECONDS,
    Machine,
    StageCost,
    duration,
    gigabytes,
    machine_named,
    this_machine,
)
from dynolab.errors import ConfigError
from flows.costs import PlannedCosts
from flows.fitting import field_of, remedy
from flows.flow import Plan, Planned

StageCosts = Mapping[str, StageCost | None]


def show_plan(
    console: Console, plan: Plan, planned: Sequence[Planned], machine: str | None
) -> list[dict[str, Any]]:
    """Prints stages with their keys, and what those to run take; returns the same as plain data.

    **Raises:** `ConfigError` for the first stage that does not fit, with the settings that help.
    """
    table = Table("stage", "state", "key")
    for row in planned:
        table.add_row(row.step, row.state, row.key[:16] if row.key else "known after its inputs")
    console.print(table)
    for row in planned:
        if row.changed:
            console.print(f"{', '.join(row.changed)} changed: {row.step} is computed again")
    due = {row.step for row in planned if row.state == "to run"}
    here = this_machine() if machine is None else machine_named(machine)
    costs = PlannedCosts(plan.steps, here)
    stage_costs = {step.name: costs.of(step) for step in plan.steps if step.name in due}
    for line in costs.read:
        console.print(line, highlight=False, soft_wrap=True)
    if any(stage_costs.values()):
        _show_costs(console, stage_costs, here)
    for step in plan.steps:
        cost = stage_costs.get(step.name)
        if cost is not None and (lack := cost.lacks(here)) is not None:
            raise ConfigError(
                field_of(step), f"{cost.parameters:,} parameters", f"{lack}; {remedy(step, costs)}"
            )
    return [
        {
            "step": row.step,
            "state": row.state,
            "key": row.key,
            "cost": None if (cost := stage_costs.get(row.step)) is None else asdict(cost),
        }
        for row in planned
    ]


def _show_costs(console: Console, stage_costs: StageCosts, machine: Machine) -> None:
    size = f"{machine.devices} x {gigabytes(machine.device_bytes)}, " if machine.gpus else ""
    speeds = f"{machine.disk / 1e9:.3g} GB/s of disk"
    if machine.devices > GPUS_PER_HOST:
        speeds = f"{machine.network / 1e9:.3g} GB/s between hosts, {speeds}"
    if math.isfinite(machine.link):
        speeds = f"{machine.link / 1e9:.3g} GB/s between ranks, {speeds}"
    console.print(
        f"On {machine.name} ({size}{gigabytes(machine.host_bytes)} of main memory, {speeds}; "
        f"{machine.source}):",
        highlight=False,
    )
    table = Table("stage", box=None, pad_edge=False)
    for column in ("tokens", "GB a\nrank", "GB\nhost", "GB\nwritten", "time", "of it\nsending"):
        table.add_column(column, justify="right")
    table.add_column("", no_wrap=True)
    for name, cost in stage_costs.items():
        if cost is None:
            table.add_row(name, *("-" * 6), "")
            continue
        table.add_row(
            name,
            _count(cost.tokens),
            f"{cost.rank_bytes / 1e9:.1f}",
            f"{cost.host_bytes / 1e9:.1f}",
            f"{cost.written / 1e9:.1f}",
            duration(cost.hours * 3600),
            duration(cost.sending_hours * 3600),
            "fits" if cost.lacks(machine) is None else "[red]too large[/red]",
        )
    console.print(table)
    estimates = [cost for cost in stage_costs.values() if cost is not None]
    parameters = max(cost.parameters for cost in estimates)
    total, sending, disk = (
        duration(3600 * sum(getattr(cost, name) for cost in estimates))
        for name in ("hours", "sending_hours", "disk_hours")
    )
    console.print(
        f"{parameters:,} parameters; {total} for what is estimated, of it {sending} for sending "
        f"between ranks and {disk} for the disk, and about {duration(UNTIMED_SECONDS)} to start "
        f"and to draw pages. {_about(machine)}",
        highlight=False,
    )
    for line in idle_gpus(stage_costs, machine):
        console.print(line, highlight=False)
    if None in stage_costs.values():
        console.print("  -  not estimated")


def idle_gpus(stage_costs: StageCosts, machine: Machine) -> list[str]:
    """A sentence for each number of GPUs that stages leave idle while they compute."""
    stages = defaultdict[int, list[str]](list)
    for name, cost in stage_costs.items():
        if cost is not None and cost.tokens and cost.ranks < machine.devices:
            stages[machine.devices - cost.ranks].append(name)
    return [
        f"{idle} of {machine.devices} GPUs stay{'s' * (idle == 1)} idle in {', '.join(names)}."
        for idle, names in sorted(stages.items(), reverse=True)
    ]


def _about(machine: Machine) -> str:
    """What stands behind memory and times."""
    apart = "computing, sending and the disk are taken to wait for each other."
    if machine.gpus:
        return (
            "Memory is planned by formulas that were measured on CPUs alone; times assume "
            "60% of the datasheet's speed in fp32, 40% in bf16 and 80% of a link's; " + apart
        )
    return (
        "Times are those of one pass of the model here, times the passes of a stage, if nothing "
        "else runs; " + apart
    )


def _count(number: int) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)
