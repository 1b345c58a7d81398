"""What every step of a plan takes, as its stage estimates it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dynolab.costs.machines import Machine, StageCost
from dynolab.data.sources.config import rows_line
from dynolab.data.sources.load import DataConfig
from dynolab.probes.making.probe_set import ProbeSetConfig
from flows.flow import Step
from tasks.base import BaseConfig
from tasks.shared.cost_inputs import Inputs
from tasks.shared.costs import Costs


class PlannedCosts:
    """Costs of a plan's steps on a machine."""

    def __init__(self, steps: Sequence[Step], machine: Machine) -> None:
        self._by_name = {step.name: step for step in steps}
        self.machine = machine
        self._costs: dict[tuple[str, str], Costs] = {}
        self._watched: ProbeSetConfig | None = None
        for step in steps:
            if isinstance(step.config, ProbeSetConfig):
                self._watched = step.config

    def of(self, step: Step) -> StageCost | None:
        """What a step takes; None where that is not estimated.

        **Raises:** `ConfigError` for a model or rows that cannot be read.
        """
        base, data = (_root(step, self._by_name, kind) for kind in (BaseConfig, DataConfig))
        if base is None or data is None:
            return None
        key = base.model_dump_json(), data.model_dump_json()
        inputs = Inputs(base.source, base.revision, data, self._watched)
        costs = self._costs.setdefault(key, Costs(inputs, self.machine))
        if step.stage.estimate is None:
            return None
        reads = {
            role: self._by_name[name].config
            for role, name in step.inputs.items()
            if name in self._by_name
        }
        return step.stage.estimate(costs, step.config, reads)

    @property
    def read(self) -> list[str]:
        """What was read of files, as `rows_line` says it."""
        sources = [costs.inputs for costs in self._costs.values()]
        return [rows_line(inputs.loaded.all_counts) for inputs in sources if inputs.reads_file]


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
