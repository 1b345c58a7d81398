"""Shows a plan: which stages would run, what each takes on a machine, and what stands behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from dynolab.costs.machines import (
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
from flows.flow import Plan, Planned, Step

StageCosts = Mapping[str, StageCost | None]

LEFT_OUT = ("audit", "forces", "kernel", "ledger", "squeezing")
"""Analyses that a study can do without."""


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
                field_of(step), f"{cost.parameters:,} parameters", f"{lack}; {remedy(step, here)}"
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


def field_of(step: Step) -> str:
    """The name of a step's settings in a study file."""
    if step.stage.name == "arm":
        return "training"
    return step.stage.name if step.stage.name in LEFT_OUT else step.name


def remedy(step: Step, machine: Machine) -> str:
    """The settings by which a step takes less."""
    field, engine = field_of(step), getattr(step.config, "engine", None)
    if field in LEFT_OUT:
        return f"set {field}=null, or choose a larger machine"
    if engine is None:
        return "choose a larger machine or a smaller model"
    if machine.gpus and engine.ranks > machine.devices:
        return f"set {field}.engine.ranks={machine.devices}"
    return (
        f"under {field}, set micro_batch_size=1, engine.checkpoint_activations=true, "
        "engine.zero_stage=3 (over several ranks) or lora.rank=8, or choose a larger machine"
    )


def _show_costs(console: Console, stage_costs: StageCosts, machine: Machine) -> None:
    size = f"{machine.devices} x {gigabytes(machine.device_bytes)}, " if machine.gpus else ""
    console.print(
        f"On {machine.name} ({size}{gigabytes(machine.host_bytes)} of main memory; "
        f"{machine.source}):",
        highlight=False,
    )
    table = Table("stage", box=None, pad_edge=False)
    for column in ("tokens", "GB a\nrank", "GB\nhost", "GB\nwritten", "time"):
        table.add_column(column, justify="right")
    table.add_column("", no_wrap=True)
    for name, cost in stage_costs.items():
        if cost is None:
            table.add_row(name, *("-" * 5), "")
            continue
        table.add_row(
            name,
            _count(cost.tokens),
            f"{cost.rank_bytes / 1e9:.1f}",
            f"{cost.host_bytes / 1e9:.1f}",
            f"{cost.written / 1e9:.1f}",
            duration(cost.hours * 3600),
            "fits" if cost.lacks(machine) is None else "[red]too large[/red]",
        )
    console.print(table)
    estimates = [cost for cost in stage_costs.values() if cost is not None]
    parameters = max(cost.parameters for cost in estimates)
    hours = sum(cost.hours for cost in estimates)
    console.print(
        f"{parameters:,} parameters; {duration(3600 * hours)} for what is estimated, and about "
        f"{duration(UNTIMED_SECONDS)} to start and to draw pages. {_about(machine)}",
        highlight=False,
    )
    if None in stage_costs.values():
        console.print("  -  not estimated")


def _about(machine: Machine) -> str:
    """What stands behind memory and times."""
    if machine.gpus:
        return (
            "Memory is planned by formulas that were measured on CPUs alone; times assume "
            "60% of the datasheet's speed in fp32 and 40% in bf16."
        )
    return "Times are those of one pass of the model here, times the passes of a stage."


def _count(number: int) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)
