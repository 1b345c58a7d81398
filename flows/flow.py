"""What a flow is: its parameters, the plan they lead to, and what a person sees of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from tasks.runtime.pipeline import Step
from tasks.runtime.stage import Platform
from tasks.runtime.work import StageResult

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$")]
Results = dict[str, dict[str, Any]]
"""Results of stages by step, as plain data."""


class FlowParameters(BaseModel):
    """What a person chooses when starting a flow; what every flow has."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name = Field(description="Name of the run in MLflow, and of its page's file.")
    project: str = Field("dynolab", description="MLflow experiment.")

    @property
    def as_yaml(self) -> str:
        """The parameters as a study file has them: pages show it."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


Parameters = TypeVar("Parameters", bound=FlowParameters)


@dataclass(frozen=True)
class Plan:
    """What a flow runs."""

    parameters: FlowParameters
    """With the sources at the content that they have now."""

    steps: Sequence[Step]
    existing: Mapping[str, StageResult] = field(default_factory=dict)
    """Results that need no step, by the names that steps read them under."""

    tags: Mapping[str, str] = field(default_factory=dict)
    """Of the parent run in MLflow, beside the flow's name."""

    trained: str | None = None
    """Step whose model MLflow lists among its models."""


@dataclass(frozen=True)
class Form:
    """What the form of a deployment offers beside a study file: settings that people change most.

    A field has the type and the description of the setting that it stands for.
    """

    about: str
    """What the deployment does: its description in Prefect."""

    fields: Mapping[str, str] = field(default_factory=dict)
    """Field → dotted name of its setting."""

    objective: str | None = None
    """Setting that holds the objective; fields under it belong to the one that is chosen."""

    objectives: tuple[str, ...] = ()
    """Names of the objectives that can be chosen there."""

    file: str | None = None
    """Study file of deploy/studies that it starts from; default: the flow's built-in one."""

    fixed: tuple[str, ...] = ()
    """Settings that make the deployment what it is, as key=value."""


@dataclass(frozen=True)
class Flow(Generic[Parameters]):
    """A flow: what a person gives it, how it is offered in Prefect, and what it runs."""

    name: str
    parameters: type[Parameters]
    forms: Mapping[str, Form] = field(default_factory=dict, kw_only=True)
    """Its deployments in Prefect by name; default: one of the flow's name, with a study file."""

    pool: str = field(default="training", kw_only=True)
    """Work pool of its runs: `training`, or `cpu` for a flow that trains nothing itself."""

    body: Callable[[Parameters], Any] | None = field(default=None, kw_only=True)
    """What a flow that is not made of stages does, inside a Prefect flow run."""


@dataclass(frozen=True)
class StagedFlow(Flow[Parameters]):
    """A flow that is made of stages."""

    plan: Callable[[Parameters, Platform], Plan]
    """Raises `ConfigError` for what cannot work."""

    page: str
    """Step whose `file` is copied to where a person finds it."""

    file: str
