"""What every step of a plan takes, as its stage estimates it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from dynolab.costs.machines import Machine, StageCost
from dynolab.data.sources.config import rows_line
from dynolab.data.sources.load import DataConfig, LoadedData
from dynolab.probes.making.probe_set import ProbeSetConfig
from dynolab.training.config import LoopConfig
from flows.flow import Step
from tasks.base import BaseConfig
from tasks.shared.cost_inputs import Inputs
from tasks.shared.costs import Costs

Changes = dict[str, Any]
"""Settings by their dotted names, with other values."""


class PlannedCosts:
    """Costs of a plan's steps on a machine.

    **Arguments:** `rows`: those of all steps, if they have been read.
    """

    def __init__(
        self, steps: Sequence[Step], machine: Machine, rows: LoadedData | None = None
    ) -> None:
        self._by_name = {step.name: step for step in steps}
        self.machine, self._rows = machine, rows
        self._costs: dict[tuple[str, str], Costs] = {}
        self._watched: ProbeSetConfig | None = None
        for step in steps:
            if isinstance(step.config, ProbeSetConfig):
                self._watched = step.config

    def step(self, name: str) -> Step | None:
        """The step of that name."""
        return self._by_name.get(name)

    def changed(self, changed_step: Step, changes: Changes) -> PlannedCosts:
        """The plan with other settings of a training, in the steps that know them, or of another
        step.

        **Raises:** `ConfigError` or pydantic's `ValidationError` for settings that cannot be.
        """
        steps = []
        for step in self._by_name.values():
            if step.name == changed_step.name:
                step = replace(step, config=with_changes(step.config, changes))
            elif step.inputs.get("trained") == changed_step.name and hasattr(
                step.config, "training"
            ):
                inner = {f"training.{name}": value for name, value in changes.items()}
                step = replace(step, config=with_changes(step.config, inner))
            steps.append(step)
        plan = PlannedCosts(steps, self.machine, self._rows)
        plan._costs = self._costs  # with what was read and traced
        return plan

    def longest_row(self, step: Step) -> int:
        """Tokens of the longest row that a training's settings and the context allow."""
        costs, training = self._costs_of(step), step.config
        assert costs is not None and isinstance(training, LoopConfig)
        return costs.limit(training.max_length)

    def of(self, step: Step) -> StageCost | None:
        """What a step takes; None where that is not estimated.

        **Raises:** `ConfigError` for a model or rows that cannot be read.
        """
        costs = self._costs_of(step)
        if costs is None or step.stage.estimate is None:
            return None
        reads = {
            role: self._by_name[name].config
            for role, name in step.inputs.items()
            if name in self._by_name
        }
        return step.stage.estimate(costs, step.config, reads).with_disk(self.machine)

    def _costs_of(self, step: Step) -> Costs | None:
        """Costs of its model and rows; None of a step that has none."""
        base, data = (_root(step, self._by_name, kind) for kind in (BaseConfig, DataConfig))
        if base is None or data is None:
            return None
        key = base.model_dump_json(), data.model_dump_json()
        inputs = Inputs(base.source, base.revision, data, self._watched, self._rows)
        return self._costs.setdefault(key, Costs(inputs, self.machine))

    @property
    def read(self) -> list[str]:
        """What was read of files, as `rows_line` says it."""
        sources = [costs.inputs for costs in self._costs.values()]
        return [rows_line(inputs.loaded.all_counts) for inputs in sources if inputs.reads_file]


def with_changes(config: BaseModel, changes: Changes) -> BaseModel:
    """A config with other values of some settings; raises as `PlannedCosts.changed`."""
    settings = config.model_dump()
    for name, value in changes.items():
        *path, last = name.split(".")
        place = settings
        for key in path:
            place[key] = place.get(key) or {}  # such as `lora: null`
            place = place[key]
        place[last] = value
    return type(config).model_validate(settings)


def _root(step: Step, by_name: Mapping[str, Step], kind: type[Any]) -> Any:
    """The config of type `kind` that a step or one of its inputs has."""
    if isinstance(step.config, kind):
        return step.config
    for name in step.inputs.values():
        if name in by_name and (config := _root(by_name[name], by_name, kind)) is not None:
            return config
    if kind is DataConfig:  # an imported model reads no rows
        return next((s.config for s in by_name.values() if isinstance(s.config, kind)), None)
    return None
