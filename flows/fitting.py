"""Which setting lets a stage fit a machine that it does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dynolab.costs.machines import Machine
from dynolab.errors import ConfigError
from dynolab.training.config import LoopConfig
from flows.stage_costs import PlannedCosts
from tasks.runtime.pipeline import Step

Changes = Mapping[str, Any]
"""Dotted name of a setting → its value."""

LEFT_OUT = ("audit", "forces", "kernel", "ledger", "squeezing")
"""Analyses that a study can do without."""


def remedy(step: Step, costs: PlannedCosts) -> str:
    """The settings that make a step fit, each alone before several; else that none was found."""
    machine = costs.machine
    for changes in _tried(step.config, machine):
        changed = _changed(step, changes)
        if changed is None:
            continue
        cost = costs.of(changed)
        if cost is not None and cost.lacks(machine) is None:
            prefix = field_of(step)
            return "set " + ", ".join(
                f"{prefix}.{name}={_written(value)}" for name, value in changes.items()
            )
    if step.stage.name in LEFT_OUT:
        return f"set {step.stage.name}=null"
    return "no setting of this stage makes it fit; choose a larger machine or a smaller model"


def field_of(step: Step) -> str:
    """The name of a step's settings in a study file."""
    if step.stage.name == "arm":
        return "training"
    return step.stage.name if step.stage.name in LEFT_OUT else step.name


def _tried(config: Any, machine: Machine) -> Iterator[Changes]:
    single = list(_training(config, machine)) if isinstance(config, LoopConfig) else []
    if hasattr(config, "answers") and hasattr(config, "training"):
        single = [{"answers": 0}, {"answers": 0, "every": 10}]
    yield from single
    together: dict[str, Any] = {}
    for changes in single:
        together |= changes
        yield dict(together)


def _training(config: LoopConfig, machine: Machine) -> Iterator[Changes]:
    engine = config.engine
    if engine.ranks > 1:
        yield from ({"engine.zero_stage": stage} for stage in range(engine.zero_stage + 1, 4))
    smaller = config.micro_examples
    while smaller > 1:
        smaller //= 2
        yield {"micro_batch_size": smaller}
    if not engine.checkpoint_activations:
        yield {"engine.checkpoint_activations": True}
    if machine.gpus and engine.ranks != machine.devices and engine.kind == "deepspeed":
        ranks = min(machine.devices, config.batch_size)
        yield {"engine.ranks": ranks}
        if ranks > 1:
            yield {"engine.ranks": ranks, "engine.zero_stage": 3}
    if config.lora is None:
        yield {"lora.rank": 8}


def _changed(step: Step, changes: Changes) -> Step | None:
    """The step with other settings; None where these do not go together."""
    content = step.config.model_dump()
    for name, value in changes.items():
        *path, last = name.split(".")
        inner = content
        for part in path:
            inner[part] = inner[part] or {}
            inner = inner[part]
        inner[last] = value
    try:
        return replace(step, config=type(step.config).model_validate(content))
    except ConfigError:
        return None


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
