"""Parameters of a sweep: which settings of which flow are tried, and by which metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.data.source_checks import FilePath
from dynolab.errors import ConfigError
from dynolab.results.sweep import Scalar
from flows.flow import FlowParameters, Name
from flows.parameters import as_change, load_parameters, study_file
from flows.registry import FLOWS, load_flow


class Dimension(BaseModel):
    """The values of one setting: a choice of `values`, or numbers from `low` to `high`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    values: tuple[Scalar, ...] | None = Field(
        None, min_length=1, description="Values to choose from."
    )
    low: float | None = Field(None, description="Smallest number.")
    high: float | None = Field(None, description="Largest number.")
    log: bool = Field(False, description="Draw on a log scale.")
    integer: bool = Field(False, description="Whole numbers.")

    @model_validator(mode="after")
    def _is_one_kind(self) -> Dimension:
        ends = (self.low, self.high)
        if (self.values is None) == (ends == (None, None)):
            raise ConfigError("space", self.values, "give either values, or low and high")
        if self.values is not None:
            return self
        if self.low is None or self.high is None or not self.low < self.high:
            raise ConfigError("space", ends, "low must be below high; give both")
        if self.log and self.low <= 0:
            raise ConfigError("space.low", self.low, "must be above 0 on a log scale")
        if self.integer and not (self.low.is_integer() and self.high.is_integer()):
            raise ConfigError(
                "space", ends, "with integer: true, low and high must be whole numbers"
            )
        return self


class PruneConfig(BaseModel):
    """Pruning of trials whose metric is worse than the median of the others so far."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    after_trials: int = Field(4, ge=1, description="Complete trials before any is pruned.")
    after_steps: int = Field(0, ge=0, description="Steps of a trial before it can be pruned.")
    every: int = Field(10, ge=1, description="Steps between two checks of the metric.")


class SweepParameters(FlowParameters):
    """Parameters of a sweep."""

    name: Name = Field("sweep", description="Name of the sweep: its run, and its page's file.")
    flow: str = Field("train", description="Flow that every trial runs.")
    study: FilePath | None = Field(None, description="Study file with the settings of all trials.")
    settings: tuple[str, ...] = Field(
        (), description="Changes to that file for all trials, as key=value."
    )
    space: dict[str, Dimension] = Field(
        ..., min_length=1, description="Dotted name of a setting → its values."
    )
    sampler: Literal["grid", "random", "tpe"] = Field(
        "grid",
        description="Every combination, draws, or Optuna's tree-structured Parzen estimator.",
    )
    trials: int | None = Field(None, ge=1, description="Number of trials; default: the whole grid.")
    seed: int = Field(0, ge=0, description="Seed of the sampler.")
    stage: str = Field("preference", description="Step of the flow that has the metric.")
    metric: str = Field(
        "probe/chosen/logp_per_token",
        description="Name of the metric in MLflow; its last value counts.",
    )
    direction: Literal["maximize", "minimize"] = Field(
        "maximize", description="Whether to maximise or minimise the metric."
    )
    prune: PruneConfig | None = Field(
        None, description="Ends unpromising trials early; null: none."
    )
    concurrency: int = Field(
        2, ge=1, description="Trials submitted at once; the workers' pool may run fewer."
    )
    retries: int = Field(1, ge=0, description="How often a trial whose process died runs again.")

    @model_validator(mode="after")
    def _can_be_sampled(self) -> SweepParameters:
        if self.sampler != "grid" and self.trials is None:
            raise ConfigError("trials", None, f"set the number of trials that {self.sampler} draws")
        if self.sampler == "grid":
            for setting, dimension in self.space.items():
                if dimension.values is None:
                    raise ConfigError(
                        f"space.{setting}",
                        [dimension.low, dimension.high],
                        "a grid needs values; list them, or choose random or tpe",
                    )
        return self

    @property
    def total(self) -> int:
        """Number of trials."""
        if self.sampler != "grid":
            assert self.trials is not None
            return self.trials
        size = math.prod(len(dimension.values or ()) for dimension in self.space.values())
        return min(size, self.trials or size)

    @property
    def study_path(self) -> Path | None:
        """The study file of a trial."""
        return None if self.study is None else study_file(Path(self.study))


def check_sweep(parameters: SweepParameters) -> None:
    """Raises `ConfigError`, before any trial, for an unknown flow and for invalid settings.

    Checks each value of a setting together with the first values of the others.
    """
    flows = [name for name in FLOWS if name != "sweep"]
    if parameters.flow not in flows:
        raise ConfigError("flow", parameters.flow, f"choose one of {', '.join(flows)}")
    first = {
        name: dimension.low if dimension.values is None else dimension.values[0]
        for name, dimension in parameters.space.items()
    }
    for name, dimension in parameters.space.items():
        for value in dimension.values or (dimension.low, dimension.high):
            trial_of(parameters, first | {name: value})


def trial_of(parameters: SweepParameters, point: Mapping[str, Any]) -> tuple[Any, Any]:
    """The flow of a trial, and its parameters with the values of a `point` of the space.

    **Raises** `ConfigError` for settings that cannot work.
    """
    changes = [as_change(setting, value) for setting, value in point.items()]
    flow = load_flow(parameters.flow)
    settings = load_parameters(
        flow.parameters, parameters.study_path, [*parameters.settings, *changes]
    )
    return flow, settings
