"""Parameters of a sweep: which settings of which flow are tried, and what is best."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.errors import ConfigError
from dynolab.results.sweep import Scalar
from flows.flow import FlowParameters, Name
from flows.parameters import as_change, load_parameters
from flows.registry import FLOWS, load_flow


class Dimension(BaseModel):
    """What one setting may be: one of `values`, or a number from `low` to `high`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    values: tuple[Scalar, ...] | None = Field(None, min_length=1, description="To choose from.")
    low: float | None = Field(None, description="Smallest number.")
    high: float | None = Field(None, description="Largest number.")
    log: bool = Field(False, description="Orders of magnitude alike.")
    integer: bool = Field(False, description="Whole numbers.")

    @model_validator(mode="after")
    def _is_one_kind(self) -> Dimension:
        ends = (self.low, self.high)
        if (self.values is None) == (ends == (None, None)):
            raise ConfigError("space", self.values, "give either values, or low and high")
        if self.values is not None:
            return self
        if self.low is None or self.high is None or not self.low < self.high:
            raise ConfigError("space", ends, "low must lie below high")
        if self.log and self.low <= 0:
            raise ConfigError("space.low", self.low, "on a log scale must be above 0")
        if self.integer and not (self.low.is_integer() and self.high.is_integer()):
            raise ConfigError("space", ends, "integer: true needs whole numbers as its ends")
        return self


class PruneConfig(BaseModel):
    """When a trial is ended early: its metric is worse than the median of the others so far."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    after_trials: int = Field(4, ge=1, description="Complete trials before any is pruned.")
    after_steps: int = Field(0, ge=0, description="Steps of a trial before it can be pruned.")
    every: int = Field(10, ge=1, description="Steps between two looks at the metric.")


class SweepParameters(FlowParameters):
    """What a person chooses when trying settings."""

    name: Name = Field("sweep", description="Name of the sweep: its run, and its page's file.")
    flow: str = Field("train", description="Flow that a trial runs.")
    study: str | None = Field(None, description="Study file with a trial's settings.")
    settings: tuple[str, ...] = Field(
        (), description="Changes of that file for all trials, as key=value."
    )
    space: dict[str, Dimension] = Field(
        ..., min_length=1, description="Setting by its dotted name → what it may be."
    )
    sampler: Literal["grid", "random", "tpe"] = Field(
        "grid",
        description="Every combination, draws, or Optuna's tree-structured Parzen estimator.",
    )
    trials: int | None = Field(None, ge=1, description="How many; default: the whole grid.")
    seed: int = Field(0, ge=0, description="Of the sampler's draws.")
    stage: str = Field("preference", description="Step of the flow whose metric counts.")
    metric: str = Field(
        "probe/chosen/logp_per_token", description="Name in MLflow; its last value counts."
    )
    direction: Literal["maximize", "minimize"] = Field("maximize", description="What is better.")
    prune: PruneConfig | None = Field(None, description="Ends hopeless trials early; null: none.")
    concurrency: int = Field(
        2, ge=1, description="Trials handed to the workers at once; their pool may have fewer."
    )
    retries: int = Field(1, ge=0, description="Times that a trial whose process died runs again.")

    @model_validator(mode="after")
    def _can_be_sampled(self) -> SweepParameters:
        if self.sampler != "grid" and self.trials is None:
            raise ConfigError("trials", None, f"say how many {self.sampler} shall draw")
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
        return None if self.study is None else Path(self.study)


def check_sweep(parameters: SweepParameters) -> None:
    """Refuses, before any trial, a flow that is not there and settings that cannot work.

    Each value of the space is tried alone, beside the first value of the others.
    """
    flows = [name for name in FLOWS if name != "sweep"]
    if parameters.flow not in flows:
        raise ConfigError("flow", parameters.flow, f"choose one of {', '.join(flows)}")
    kind = load_flow(parameters.flow).parameters
    first = {
        name: dimension.low if dimension.values is None else dimension.values[0]
        for name, dimension in parameters.space.items()
    }
    for name, dimension in parameters.space.items():
        for value in dimension.values or (dimension.low, dimension.high):
            changes = [as_change(key, given) for key, given in (first | {name: value}).items()]
            load_parameters(kind, parameters.study_path, [*parameters.settings, *changes])
