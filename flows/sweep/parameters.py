"""Parameters of a sweep: which values of which settings it tries, and how it chooses among them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from dynolab.data.source_checks import FilePath
from dynolab.errors import ConfigError
from dynolab.results.sweep import Scalar, shortest_names
from flows.flow import FlowParameters, Name
from flows.parameters.parse import study_file
from tasks.runtime.work import StageConfig

DRAWS = 10
"""Trials of a sampler that draws, unless their number is set."""

_EXPONENT = re.compile(r"[-+]?\d+[eE][-+]?\d+")


class Dimension(StageConfig):
    """The values of one setting: a choice of `values`, or numbers from `low` to `high`."""

    values: tuple[Scalar, ...] | None = Field(
        None, min_length=1, description="Values to choose from."
    )
    low: float | None = Field(None, description="Smallest number.")
    high: float | None = Field(None, description="Largest number.")
    log: bool = Field(False, description="Draw on a log scale.")
    integer: bool = Field(False, description="Whole numbers.")

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, content: Any) -> Any:
        return {"values": content} if isinstance(content, list) else content

    @field_validator("values")
    @classmethod
    def _numbers(cls, values: tuple[Scalar, ...] | None) -> tuple[Scalar, ...] | None:
        # YAML reads 1e-5, unlike 1.0e-5, as text.
        return values and tuple(
            float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value
            for value in values
        )

    @model_validator(mode="after")
    def _is_one_kind(self) -> Dimension:
        ends = (self.low, self.high)
        if (self.values is None) == (ends == (None, None)):  # neither of them, or both
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

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of a range."""
        assert self.low is not None and self.high is not None
        return self.low, self.high


Direction = Literal["maximize", "minimize"]


class PruneConfig(StageConfig):
    """Pruning of trials whose metric is worse than that of others after as many steps.

    Successive halving: Li et al., arXiv 1810.05934; Hyperband: Li et al., arXiv 1603.06560.
    """

    rule: Literal["median", "asha", "hyperband"] = Field(
        "median",
        description="What a trial has to reach to go on: the median of the others; the best of "
        "`factor` trials, at every `factor` times as many steps (asynchronous successive halving); "
        "the same with different first checks (Hyperband).",
    )
    after_trials: int = Field(4, ge=1, description="median: complete trials before any is pruned.")
    after_steps: int = Field(0, ge=0, description="Steps of a trial before it can be pruned.")
    factor: int = Field(3, ge=2, description="asha, hyperband: of so many trials one goes on.")
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
        description="Every combination, draws, or Optuna's tree-structured Parzen estimator. "
        "Default: grid, or random where `space` has a range.",
    )
    trials: int | None = Field(
        None, ge=1, description="Number of trials; default: the whole grid, or 10 draws."
    )
    seed: int = Field(0, ge=0, description="Seed of the sampler.")
    stage: str = Field("preference", description="Step of the flow that has the metric.")
    metric: str = Field(
        "probe/chosen/logp",
        description="Name of the metric in MLflow; its last value counts.",
    )
    direction: Direction = Field(
        "maximize", description="Whether to maximise or minimise the metric."
    )
    also: dict[str, Direction] = Field(
        {},
        description="Further metrics → maximize or minimize. The best trials are then those that "
        "no other trial beats in all metrics: the Pareto front.",
    )
    prune: PruneConfig | None = Field(
        None, description="Ends unpromising trials early; null: none."
    )

    @model_validator(mode="before")
    @classmethod
    def _drawn_from_ranges(cls, content: Any) -> Any:
        """A range cannot be listed: unless it is said otherwise, it is drawn from at random."""
        if not isinstance(content, dict):
            return content
        space = content.get("space")
        dimensions = space.values() if isinstance(space, dict) else ()
        is_range = any(
            isinstance(kind, dict) and kind.get("low") is not None for kind in dimensions
        )
        sampler = content.get("sampler", "random" if is_range else "grid")
        drawn = {"sampler": sampler, "trials": content.get("trials") or DRAWS}
        return content if sampler == "grid" else {**content, **drawn}

    @model_validator(mode="after")
    def _can_be_sampled(self) -> SweepParameters:
        if self.also and self.prune is not None:
            raise ConfigError("prune", self.prune.rule, "needs a single metric; leave out `also`")
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
    def objectives(self) -> dict[str, Direction]:
        """The metrics that decide, the first one first, and their directions."""
        return {self.metric: self.direction, **self.also}

    @property
    def tried(self) -> dict[str, str]:
        """The settings of `space` that differ between trials → their shortest names that tell them
        apart (`shortest_names`); all settings if none differs."""
        varied = [
            name
            for name, dimension in self.space.items()
            if dimension.values is None or len(dimension.values) > 1
        ]
        return shortest_names(varied or list(self.space))

    @property
    def total(self) -> int:
        """Number of trials."""
        if self.sampler != "grid":
            assert self.trials is not None
            return self.trials
        size = math.prod(len(dimension.values or ()) for dimension in self.space.values())
        return min(size, self.trials or size)  # `trials` limits a grid

    @property
    def study_path(self) -> Path | None:
        """The study file of a trial."""
        return None if self.study is None else study_file(Path(self.study))
