"""Defines a flow: its parameters, its steps and their results, and its forms in Prefect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import yaml
from pydantic import BaseModel, Field, StringConstraints

from dynolab.store import Store
from dynolab.store.find import find_result
from tasks.runtime.stage import Platform, Stage, changed_sources, lookup, plan_key
from tasks.runtime.work import StageConfig, StageResult

NAME = r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$"
Name = Annotated[str, StringConstraints(pattern=NAME)]
Results = dict[str, dict[str, Any]]
"""Results of stages by step, as plain data."""


class FlowParameters(StageConfig):
    """Parameters that every flow has."""

    name: Name = Field(description="Name of the run in MLflow, and of its page's file.")
    project: str = Field("dynolab", description="MLflow experiment.")

    @property
    def as_yaml(self) -> str:
        """The parameters as a study file, which pages show."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


Parameters = TypeVar("Parameters", bound=FlowParameters)


Fresh = bool | tuple[str, ...]
"""Whether all stages are computed again, or which, by the names of steps or stages.

What follows from them is computed again where their new results differ, since keys tell inputs.
"""


@dataclass(frozen=True)
class Step:
    """One stage of a study: its config, and input name → step whose result it reads."""

    name: str
    stage: Stage[Any]
    config: BaseModel
    inputs: Mapping[str, str] = field(default_factory=dict)

    compared_by: Mapping[str, str] = field(default_factory=dict)
    """Parameters of this step's run in MLflow, which tell it from the runs beside it.

    Empty for steps that are not compared.
    """

    def is_among(self, names: Sequence[str]) -> bool:
        """Whether the names hold this step's, or its stage's."""
        return self.name in names or self.stage.name in names

    def sources(self, results: Mapping[str, StageResult]) -> dict[str, StageResult]:
        """Input name → result that this step reads."""
        return {name: results[step] for name, step in self.inputs.items()}


@dataclass(frozen=True)
class Plan:
    """The steps that a flow runs, and what they read."""

    parameters: FlowParameters
    """With sources pinned to their current content."""

    steps: Sequence[Step]
    existing: Mapping[str, StageResult] = field(default_factory=dict)
    """Results that need no step, by the input names of steps."""

    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the parent run in MLflow, besides the flow's name."""

    trained: str | None = None
    """Step whose model is registered in MLflow, and whose metrics the parent run gets there."""

    early: Callable[[Mapping[str, StageResult], Platform], str] | None = None
    """The page of the results so far; empty if there is nothing to show."""

    beside: Mapping[str, str] = field(default_factory=dict)
    """Files beside that page, by the ends of their names."""


SOURCE_FIELDS = {
    "model": "base.source",
    "data_source": "data.source",
    "data_path": "data.path",
    "hub_name": "data.hub_name",
    "data_format": "data.format",
}
"""Fields of a form that choose the model and the rows."""


@dataclass(frozen=True)
class Form:
    """The fields of a deployment's form besides the study file: the settings most often changed.

    A field has the type and the description of its setting.
    """

    about: str
    """The deployment's description in Prefect."""

    fields: Mapping[str, str] = field(default_factory=dict)
    """Field → dotted name of its setting; `objective` → the name of a loss."""

    tried: Mapping[str, str] = field(default_factory=dict)
    """Field with values to try → dotted name of the setting that they are of; for a sweep."""

    objectives: tuple[str, ...] = ()
    """Names of the objectives that the form offers; default: all."""

    notes: Mapping[str, str] = field(default_factory=dict)
    """Field → what its description says besides its setting's."""

    file: str | None = None
    """Default study file, in deploy/studies; default: the flow's built-in one."""

    fixed: tuple[str, ...] = ()
    """Settings that every run of the deployment has, as key=value."""


@dataclass(frozen=True)
class Flow(Generic[Parameters]):
    """A flow: its parameters, its deployments in Prefect, and what it runs."""

    name: str
    parameters: type[Parameters]
    forms: Mapping[str, Form] = field(default_factory=dict, kw_only=True)
    """Its deployments in Prefect by name; default: one with the flow's name and a study file."""

    pool: str = field(default="training", kw_only=True)
    """Work pool of its runs: `training`, or `cpu` for a flow that does not train."""

    body: Callable[[Parameters], Any] | None = field(default=None, kw_only=True)
    """For a flow without stages: its function, which runs inside a Prefect flow run."""


@dataclass(frozen=True)
class StagedFlow(Flow[Parameters]):
    """A flow that runs stages."""

    plan: Callable[[Parameters, Platform], Plan]
    """Plans the steps. **Raises** `ConfigError` for parameters that cannot work."""

    page: str
    """Step whose `file` is copied into the home's `reports`."""

    file: str

    beside: tuple[str, ...] = ()
    """Files of the page's step that are copied with it, each under the run's name."""

    def page_in(self, reports: Path, name: str) -> Path:
        """Where the page of a run with this name is."""
        return reports / f"{name}{Path(self.file).suffix}"


@dataclass(frozen=True)
class Planned:
    """A step's committed result, if any; its key is None until its inputs are committed."""

    step: str
    key: str | None = None
    result: StageResult | None = None
    changed: Sequence[str] = ()
    """Files of a user's functions that changed since the step last ran."""

    @property
    def state(self) -> Literal["cached", "to run"]:
        """Whether the step's result is in the store."""
        return "to run" if self.result is None else "cached"


def plan(
    steps: Sequence[Step], platform: Platform, given: Mapping[str, StageResult] | None = None
) -> Iterator[Planned]:
    """Yield for every step, in order, whether its result is already committed.

    `given`: results that no step computes, under the names by which steps read them.
    """
    results = dict(given or {})
    for step in steps:
        if not set(step.inputs.values()) <= set(results):
            yield Planned(step.name)
            continue
        key = plan_key(step.stage, step.config, step.sources(results))
        changed: Sequence[str] = ()
        if (result := lookup(step.stage, key, platform)) is not None:
            results[step.name] = result
        else:
            changed = changed_sources(step.stage, step.config, step.sources(results), platform)
        yield Planned(step.name, key, result, changed)


def finished(steps: Sequence[Step], platform: Platform) -> dict[str, StageResult]:
    """Step name → result, of the steps whose result is committed."""
    planned = plan(steps, platform)
    return {step.step: step.result for step in planned if step.result is not None}


def existing_result(store: Store, field: str, reference: str) -> StageResult:
    """The committed result that a reference names, as `find_result` finds it."""
    place, committed = find_result(store, field, reference)
    return StageResult.of(place, committed, cached=True)


def results_by_digest(store: Store) -> dict[str, StageResult]:
    """All committed results of a store, by their content digests."""
    results = {}
    for stage in store.files.children("stages"):
        for key in store.files.children(f"stages/{stage}"):
            place = store.place(stage, key)
            if (committed := place.committed()) is not None:
                results[committed.manifest.digest] = StageResult.of(place, committed, cached=True)
    return results
