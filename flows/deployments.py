"""Prefect deployments: one for every form of every flow, one for trials, one to reconcile.

`flows.register` registers them with a Prefect server.
Prefect imports an entry by its dotted name, `flows.deployments.<name>`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

import prefect
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.runtime import flow_run
from pydantic import BaseModel, ConfigDict, Field, RootModel, create_model

from dynolab.errors import ConfigError
from flows.flow import Flow, Form
from flows.form import STUDIES, FilledForm, derive_form
from flows.parameters import read_settings, read_study, validated
from flows.reconcile import reconcile
from flows.registry import FLOWS, load_flow
from flows.run import run_flow

PARAMETER = "settings"
"""The only parameter of a deployed flow: its form."""

FIRST = {"study": "a-study"}
"""Deployment → the name under which Prefect, which lists by name, shows it before all others."""

INTERNAL = "~internal-{}"
"""Name of a deployment that only flows and schedules start: clear, and after all others."""

SCHEDULES = STUDIES.parent / "schedules.yaml"
RECONCILE_EVERY = timedelta(minutes=10)
RUN_NAME_LETTERS = 60


@dataclass(frozen=True)
class Deployment:
    """A flow of the registry with one of its forms; Prefect shows it as `flow/name`."""

    name: str
    flow: Flow[Any]
    form_spec: Form

    @property
    def first_file(self) -> str:
        """The form's default study file."""
        builtin = f"{self.flow.name}_builtin.yaml"
        return self.form_spec.file or next(iter(study_files(self.flow.name)), builtin)

    @cached_property
    def form_model(self) -> type[FilledForm]:
        """The model of the form that users fill in."""
        return derive_form(f"{self.name.title()}Form", self.form_spec, self.flow.parameters)

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the form for Prefect's UI, with the current study files as choices."""
        fields: Any = {PARAMETER: (self.form_model, ...)}
        model: type[BaseModel] = create_model("Parameters", **fields)
        schema = model.model_json_schema(ref_template="#/definitions/{model}")
        schema["definitions"] = schema.pop("$defs", {})
        form = schema["definitions"][self.form_model.__name__]
        form["properties"]["study_file"]["enum"] = study_files(self.flow.name)
        schema["properties"][PARAMETER] |= {"position": 0, "title": "Settings"}
        return schema

    def parameters(self, form: FilledForm) -> BaseModel:
        """Convert a filled form to the flow's parameters; raises `ConfigError`."""
        return form.parameters(self.flow.parameters, self.form_spec.fixed)

    def prefect_flow(self) -> prefect.Flow[..., Any]:
        """The flow that a worker runs: form → parameters → the same stages as the command."""

        def start(**arguments: FilledForm) -> Any:
            form = arguments[PARAMETER]
            return run_flow(self.flow, self.parameters(form), fresh=form.fresh)

        signature = [Parameter(PARAMETER, Parameter.KEYWORD_ONLY, annotation=self.form_model)]
        vars(start)["__signature__"] = Signature(signature)
        start.__doc__ = self.form_spec.about
        return prefect.flow(name=self.flow.name, flow_run_name=_run_name)(start)


def __getattr__(name: str) -> prefect.Flow[..., Any]:
    known = deployments()
    if name not in known:
        raise AttributeError(name)
    return known[name].prefect_flow()


def deployments() -> dict[str, Deployment]:
    """Every deployment of the registry's flows, by name."""
    return {
        name: Deployment(name, flow, form)
        for flow in map(load_flow, FLOWS)
        for name, form in (flow.forms or {flow.name: Form(FLOWS[flow.name])}).items()
    }


def study_files(flow: str) -> list[str]:
    """The study files of a flow: `<flow>_….yaml`; files without a flow's prefix are `study`'s."""
    wanted = "study" if flow == "train" else flow
    return sorted(path.name for path in STUDIES.glob("*.yaml") if _owner(path.name) == wanted)


def _owner(file: str) -> str:
    return next((flow for flow in FLOWS if file.startswith(f"{flow}_")), "study")


def _run_name() -> str:
    """The name in the form, else the study file's."""
    form = flow_run.parameters[PARAMETER]
    filled = form if isinstance(form, dict) else form.model_dump()
    name = str(filled.get("name") or filled.get("study_file"))
    return name.removesuffix(".yaml")[:RUN_NAME_LETTERS]


@dataclass(frozen=True)
class DeploymentSpec:
    """A deployment's fields on Prefect's server; `schema` is that of the form, if it has one."""

    flow: str
    name: str
    entrypoint: str
    pool: str
    description: str | None
    parameters: dict[str, Any] = field(default_factory=dict)
    schema: dict[str, Any] | None = None
    schedules: tuple[DeploymentScheduleCreate, ...] = ()

    @property
    def tags(self) -> list[str]:
        """Deployments without a form are also tagged `internal`."""
        return ["dynolab"] if self.schema is not None else ["dynolab", "internal"]


def deployment_specs() -> Iterator[DeploymentSpec]:
    """All deployments; raises `ConfigError` for an invalid schedule."""
    known = deployments()
    schedules = read_schedules(SCHEDULES, known)
    for deployment in known.values():
        yield DeploymentSpec(
            deployment.flow.name,
            FIRST.get(deployment.name, deployment.name),
            f"flows.deployments.{deployment.name}",
            deployment.flow.pool,
            deployment.form_spec.about,
            parameters={PARAMETER: {"study_file": deployment.first_file}},
            schema=deployment.schema,
            schedules=tuple(
                schedule.create(deployment) for schedule in schedules.get(deployment.name, [])
            ),
        )
    yield DeploymentSpec(
        "trial",
        INTERNAL.format("trial"),
        "flows.sweep.trial.trial",
        "training",
        "One trial of a sweep, started by the sweep.",
    )
    every = IntervalSchedule(interval=RECONCILE_EVERY)
    yield DeploymentSpec(
        "reconcile",
        INTERNAL.format("reconcile"),
        "flows.reconcile.reconcile",
        "cpu",
        reconcile.__doc__,
        schedules=(DeploymentScheduleCreate(schedule=every, slug="reconcile"),),
    )


class Schedule(BaseModel):
    """A deployment's cron schedule and its form's fields, from `deploy/schedules.yaml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = "schedule"
    cron: str
    timezone: str = "UTC"
    settings: dict[str, Any] = Field(default_factory=dict)
    """Fields of the form."""

    def create(self, deployment: Deployment) -> DeploymentScheduleCreate:
        """Convert to Prefect's schedule; raises `ConfigError` for an invalid one."""
        filled = {"study_file": deployment.first_file} | self.settings
        settings = validated(deployment.form_model, filled)
        clock = {"cron": self.cron, "timezone": self.timezone}
        return DeploymentScheduleCreate(
            schedule=validated(CronSchedule, clock),
            parameters={PARAMETER: settings.in_sections()},
            active=True,
            slug=self.name,
        )


def read_schedules(file: Path, known: Mapping[str, Deployment]) -> dict[str, list[Schedule]]:
    """Deployment → its schedules.

    Raises ConfigError for an invalid schedule or an unknown deployment.
    """
    if not file.exists():
        return {}
    content = read_settings(read_study(file), str(file))
    written = {name: listed or [] for name, listed in content.items()}
    for name in written:
        if name not in known:
            raise ConfigError("schedules", name, f"name a deployment: {', '.join(known)}")
    return validated(RootModel[dict[str, list[Schedule]]], written).root
