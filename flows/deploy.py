"""Prefect deployments: one for every form of every flow, and one to reconcile.

    python -m flows.deploy [alone]    # registers them; alone: no worker runs yet

Prefect imports an entry by its dotted name, `flows.deploy.<name>`. Registration is a separate
program, so that the command that starts the servers need not load the flows.
"""

from __future__ import annotations

import gc
import logging
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from inspect import Parameter, Signature
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin
from uuid import UUID

import prefect
from annotated_types import Ge, Gt, Le, Lt
from pendulum.tz.local_timezone import get_local_timezone
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import (
    DeploymentScheduleCreate,
    WorkPoolCreate,
    WorkPoolUpdate,
)
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterTags,
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import DeploymentSchedule, StateType
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Cancelled, Crashed, Failed, State
from prefect.workers.process import ProcessWorker
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo

from dynolab.errors import ConfigError, DynolabError
from flows.flow import Flow, FlowParameters, Form
from flows.parameters import (
    STUDIES,
    Parameters,
    as_change,
    choices,
    parse_parameters,
    read_settings,
    read_study,
)
from flows.registry import FLOWS, REGISTRY, load_flow
from flows.run import run_flow
from tasks.runtime.cleanup import clean_up
from tasks.runtime.servers.services import PATIENCE
from tasks.runtime.system.settings import Settings

PARAMETER = "settings"
"""The only parameter of a deployed flow: its form."""

LISTED = {name: entry.listed for name, entry in REGISTRY.items() if entry.listed} | {
    "reconcile": "~internal-reconcile"
}
"""Deployment → its name in Prefect, if another."""

POOLS = {"cpu": 4, "training": 1}
"""Work pools, and the concurrency limit that each is created with."""

URGENT = "high"
"""Queue of the training pool whose runs start before those in `default`."""

SHIPPED = {
    "sweep": DeploymentScheduleCreate(
        schedule=CronSchedule(cron="0 3 * * *", timezone=get_local_timezone().name),
        slug="nightly-beta",
        active=False,
        parameters={PARAMETER: {"study_file": "sweep_beta.yaml"}},
    )
}
"""Deployment → the inactive schedule that it begins with."""

VARIABLES = {
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "60",  # seconds
    **PATIENCE,
}
"""Environment of a flow run."""

COMMAND = [sys.executable, "-m", "tasks.runtime.flow_run_process"]
"""Of a flow run, in place of Prefect's own engine."""

SILENCE = timedelta(minutes=10)
"""How long a flow run may send no event: several heartbeats, and a restart of the server."""

AUTOMATION = "dynolab: flow runs that fell silent have crashed"
TAG = "dynolab"
FIRST = ("model", "data_source", "objective", "beta", "steps")
"""Fields that a form begins with, after the study file: what people change most."""

OTHER_TRIED = "other_values"


class FilledForm(BaseModel):
    """Fields of every form; those derived from settings change the study file's.

    Prefect refuses values outside a setting's limits; all else that cannot work ends the run before
    any work, with a message that names the setting.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    settings: ClassVar[Mapping[str, str]] = {}
    """Field → dotted name of its setting."""

    tried: ClassVar[Mapping[str, str]] = {}
    """Field → dotted name of the setting that a sweep tries the field's values of."""

    study_file: str
    other_settings: tuple[str, ...] = Field(
        (), description="Any other setting as key=value, such as sft.clip_norm=5."
    )
    study_text: str = Field(
        "", description="A whole study file (YAML), in place of the file chosen above."
    )
    fresh: bool = Field(
        False, description="Compute every stage again, even if the store has its result."
    )

    @model_validator(mode="before")
    @classmethod
    def _without_empty_fields(cls, given: Any) -> Any:
        """Prefect may send null for fields that were not filled."""
        if isinstance(given, Mapping):
            return {name: value for name, value in given.items() if value not in (None, "")}
        return given

    def parameters(self, kind: type[Parameters], fixed: Sequence[str] = ()) -> Parameters:
        """The flow parameters that the form describes; `fixed` are settings as key=value.

        **Raises** `ConfigError` for a file outside deploy/studies, and for settings that cannot
        work.
        """
        changes = [*fixed, *self._changes(), *self.other_settings]
        if self.study_text:
            return parse_parameters(kind, self.study_text, "study_text", changes)
        file = (STUDIES / self.study_file).resolve()
        if not file.is_relative_to(STUDIES.resolve()):
            raise ConfigError(
                "study_file", self.study_file, "is outside deploy/studies; choose a file in it"
            )
        return parse_parameters(kind, read_study(file), file.name, changes, folder=STUDIES)

    def _changes(self) -> Iterator[str]:
        filled = {
            name: value for name in self.settings if (value := getattr(self, name)) is not None
        }
        if name := filled.pop("objective", None):
            yield as_change(self.settings["objective"].removesuffix(".name"), {"name": name})
        for field, value in filled.items():
            yield as_change(self.settings[field], value)
        tried = [f"{setting}={getattr(self, field)}" for field, setting in self.tried.items()]
        if space := [
            f"{setting}: {{{values if ':' in values else f'values: [{values}]'}}}"
            for setting, _, values in (
                change.partition("=") for change in [*tried, *getattr(self, OTHER_TRIED, ())]
            )
            if values
        ]:
            yield f"space={{{', '.join(space)}}}"


def derive_form(title: str, form: Form, parameters: type[BaseModel], file: str) -> type[FilledForm]:
    """Derives the form's class: each field has its setting's type, limits and description.

    A field has neither null as a type, which Prefect's interface shows as a second tab, nor a
    default of null, which its server does not take for a default.
    """
    settings = {"name": "name", "project": "project", **form.fields}
    about = {
        "study_file": "Settings to start from; a file of deploy/studies. An empty field below "
        "leaves the file's setting.",
        "data_source": "The built-in world, a local file (give its Data Path below), or a data set "
        "of the Hub (give its Hub Name).",
        "objective": "The loss; its other settings start from their defaults.",
        OTHER_TRIED: "Values of any other setting of the study, one or several, such as "
        "sft.steps=20, 40. With the fields above they replace the file's `space`.",
        "other_settings": "Any other setting of the sweep itself, such as seed=1; those of "
        "the study are Other Values.",
    } | {
        name: f"Values of {setting} to try, separated by commas. To draw from a range, write it "
        "like this: low: 1, high: 10."
        for name, setting in form.tried.items()
    }
    fields: dict[str, Any] = {
        "study_file": (str, Field(file, description=about["study_file"])),
        **{name: (str, Field("", description=about[name])) for name in form.tried},
    }
    if form.tried:
        fields |= {
            name: (tuple[str, ...], Field((), description=about[name]))
            for name in (OTHER_TRIED, "other_settings")
        }
    for name, setting in settings.items():
        owner = FlowParameters if name in FlowParameters.model_fields else parameters
        kind, description, limits = _setting(owner, setting)
        if name == "objective":
            kind = Literal[form.objectives] if form.objectives else kind
        description = about.get(name, description)
        fields[name] = (
            kind,
            Field(default_factory=lambda: None, description=description, json_schema_extra=limits),
        )
    derived: type[FilledForm] = create_model(
        title, __base__=FilledForm, __doc__=form.about, **fields
    )
    derived.settings, derived.tried = settings, form.tried
    return derived


def _setting(parameters: type[BaseModel], setting: str) -> tuple[Any, str, dict[str, Any]]:
    """Type, description and limits of a setting, by its dotted name, in any class that may hold it.

    The limits, those of all classes, are JSON schema's.
    """
    fields = [FieldInfo(annotation=parameters)]
    for part in setting.split("."):
        fields = [inner for field in fields for inner in _under(field.annotation, part)]
    if not fields:
        raise ValueError(f"{parameters.__name__} has no setting {setting}")
    kinds = [kind for field in fields for kind in choices(field.annotation)]
    values = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    description = next((field.description for field in fields if field.description), "")
    kind = Literal[tuple(dict.fromkeys(values))] if values else kinds[0]
    limits = [
        limit
        for limit in fields[0].metadata
        if isinstance(limit, Ge | Gt | Le | Lt) and all(limit in field.metadata for field in fields)
    ]
    limited: Any = Annotated[kind, *limits] if limits else None
    return kind, description, TypeAdapter(limited).json_schema() if limits else {}


def _under(annotation: Any, part: str) -> Iterator[FieldInfo]:
    """The fields called `part` in an annotation's settings classes and dictionaries of them."""
    for kind in choices(annotation):
        if get_origin(kind) is dict:
            yield FieldInfo(annotation=get_args(kind)[1])
        elif isinstance(kind, type) and issubclass(kind, BaseModel) and part in kind.model_fields:
            yield kind.model_fields[part]


@dataclass(frozen=True)
class Deployment:
    """A flow of the registry with one of its forms; Prefect shows it as `flow/name`."""

    name: str
    flow: Flow[Any]
    form: Form

    @property
    def first_file(self) -> str:
        """The form's default study file."""
        return self.form.file or f"{self.flow.name}_builtin.yaml"

    @cached_property
    def form_model(self) -> type[FilledForm]:
        """The model of the form that users fill in."""
        return derive_form(
            f"{self.name.title()}Form", self.form, self.flow.parameters, self.first_file
        )

    @property
    def description(self) -> str:
        """What it does, what its default file costs, and where its page is, in Markdown."""
        lines = read_study(STUDIES / self.first_file).split("\n")
        comment = takewhile(lambda line: line.startswith("# "), lines)
        return (
            f"{self.form.about}\n\nIts default settings, `{self.first_file}`: "
            f"{' '.join(line[2:] for line in comment)}\n\nThe run's artifacts lead to its page. It "
            "is also in the folder `reports` of Dynolab's home, under the run's `name`."
        )

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the form for Prefect's UI, with the current study files as choices."""
        fields: Any = {PARAMETER: (self.form_model, ...)}
        model: type[BaseModel] = create_model("Parameters", **fields)
        schema = model.model_json_schema(ref_template="#/definitions/{model}")
        schema["definitions"] = schema.pop("$defs")
        shown = schema["definitions"][self.form_model.__name__]["properties"]
        shown["study_file"]["enum"] = study_files(self.flow.name)
        rare = ("other_settings", "study_text", "fresh")
        first = ("study_file", *self.form.tried, *FIRST)
        order = sorted(shown, key=lambda name: (name in rare) - (name in first))
        for position, name in enumerate(order):
            shown[name]["position"] = position
        return schema

    def parameters(self, form: FilledForm) -> BaseModel:
        """Convert a filled form to the flow's parameters; raises `ConfigError`."""
        return form.parameters(self.flow.parameters, self.form.fixed)

    def prefect_flow(self) -> prefect.Flow[..., Any]:
        """The flow that a worker runs: form → parameters → the same stages as the command."""

        def start(**arguments: FilledForm) -> Any:
            gc.enable()  # see tasks.runtime.flow_run_process
            form = arguments[PARAMETER]
            try:
                return run_flow(self.flow, self.parameters(form), fresh=form.fresh)
            except DynolabError as error:  # Prefect would put a long traceback before its message
                logging.getLogger(__name__).error("%s", error)
                return Failed(message=str(error))

        signature = [Parameter(PARAMETER, Parameter.KEYWORD_ONLY, annotation=self.form_model)]
        vars(start)["__signature__"] = Signature(signature)
        start.__doc__ = self.form.about
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
    """The study files of a flow; those of `train` are `study`'s."""
    wanted = "study" if flow == "train" else flow
    return sorted(path.name for path in STUDIES.glob("*.yaml") if built_in_flow(path) == wanted)


@cache
def built_in_flow(file: Path) -> str | None:
    """The flow that a file of deploy/studies is for; without a flow's name before its own, `study`.

    None: it is for a flow of a wing that is not here.
    """
    flow = flow_of(file.name, read_settings(read_study(file), file.name))
    return flow if flow == "study" or file.name.startswith(f"{flow}_") else None


def flow_of(file: str, settings: Mapping[str, Any]) -> str | None:
    """The flow whose name begins that of a study file, else the first that has its settings."""
    named = (flow for flow in FLOWS if file.startswith(f"{flow}_"))
    fitting = (
        flow for flow in FLOWS if settings.keys() <= load_flow(flow).parameters.model_fields.keys()
    )
    return next(named, None) or next(fitting, None)


def _run_name() -> str:
    """The run name that was typed, else the form's name, else the study file's and the run name.

    Prefect fills the field for the run name with two words, which somebody may have typed, too.
    """
    form, given = flow_run.parameters[PARAMETER], str(flow_run.name)
    if not re.fullmatch(r"[A-Za-z]+\d*-[A-Za-z]+\d*", given):
        return given
    filled = form if isinstance(form, dict) else form.model_dump()
    file = Path(filled.get("study_file") or flow_run.flow_name)
    return str(filled.get("name") or f"{file.stem} ({given})")[:60]


def main(*, alone: bool = False) -> None:
    """Registers every pool, deployment and automation, or updates it.

    **Arguments:** `alone`: no worker runs yet, so runs that the server lists as running are lost.
    """
    with get_client(sync_client=True) as client:
        if alone:
            close_lost_runs(client)
            keep_one_late_run(client)
        template = ProcessWorker.get_default_base_job_template()
        for name, limit in POOLS.items():
            try:
                if client.read_work_pool(name).type == "process":  # others are their users' own
                    client.update_work_pool(name, WorkPoolUpdate(base_job_template=template))
            except ObjectNotFound:
                client.create_work_pool(
                    WorkPoolCreate(
                        name=name,
                        type="process",
                        base_job_template=template,
                        concurrency_limit=limit,
                    )
                )
        with suppress(ObjectAlreadyExists):
            client.create_work_queue(
                URGENT,
                "Its runs start before those of other queues.",
                priority=1,
                work_pool_name="training",
            )
        registered = [
            _register(
                client,
                offered.flow.name,
                LISTED.get(name, name),
                first=[SHIPPED[name]] if name in SHIPPED else [],
                pool=offered.flow.pool,
                entrypoint=f"flows.deploy.{name}",
                description=offered.description,
                parameters={PARAMETER: {"study_file": offered.first_file}},
                parameter_openapi_schema=offered.schema,
                enforce_parameter_schema=True,
                tags=[TAG, REGISTRY[offered.flow.name].tag],
            )
            for name, offered in deployments().items()
        ]
        registered.append(
            _register(
                client,
                "reconcile",
                LISTED["reconcile"],
                own=IntervalSchedule(interval=timedelta(minutes=10)),
                entrypoint="flows.deploy.reconcile",
                description=f"{reconcile.__doc__} Every ten minutes; takes seconds; has no page.",
                pool="cpu",
                tags=[TAG, "maintenance"],
            )
        )
        own = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
        for former in client.read_deployments(deployment_filter=own):  # that had other names
            ours = str(former.entrypoint).startswith("flows.deploy.")
            if ours and former.id not in registered and not former.schedules:
                client.delete_deployment(former.id)
        register_automations(client)


@prefect.flow(name="reconcile")
def reconcile() -> dict[str, int]:
    """Send unsent runs to MLflow, kill orphaned processes."""
    counts = clean_up(Settings.from_environment())
    with get_client(sync_client=True) as client:
        delete_completed_runs(client)
    return counts


def delete_completed_runs(client: SyncPrefectClient) -> None:
    """Delete this flow's completed runs, which would fill the list that users find theirs in."""
    for run in client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=["reconcile"])),
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.COMPLETED]))
        ),
        limit=200,
    ):
        client.delete_flow_run(run.id)


def close_lost_runs(client: SyncPrefectClient) -> None:
    """Closes runs that the server lists as running while no worker runs: their process is gone."""
    running = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
    lost = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[TAG]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=running)),
    )
    for run in client.read_flow_runs(flow_run_filter=lost, limit=200):
        ended: State[None] = (
            Cancelled()
            if run.state is not None and run.state.is_cancelling()
            else Crashed(message="The process that ran it has ended; run it again.")
        )
        client.set_flow_run_state(run.id, ended, force=True)


def keep_one_late_run(client: SyncPrefectClient) -> None:
    """Deletes all but the newest of each schedule's runs that came due while no worker ran.

    Prints a line for each schedule, which `dynolab up` shows.
    """
    due = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[TAG, "auto-scheduled"]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
        next_scheduled_start_time=FlowRunFilterNextScheduledStartTime(before_=datetime.now(UTC)),
    )
    seen = {"reconcile"}
    order = FlowRunSort.EXPECTED_START_TIME_DESC
    for run in client.read_flow_runs(flow_run_filter=due, sort=order, limit=200):
        name = run.created_by.display_value if run.created_by else ""
        if name in seen:
            client.delete_flow_run(run.id)
        elif run.expected_start_time and name:
            time = run.expected_start_time.astimezone()
            print(f"missed  {name}, due at {time:%Y-%m-%d %H:%M}; starts now, once")
            seen.add(name)


def schedule_name(schedule: DeploymentSchedule) -> str:
    """A schedule's name: its slug; one made in the browser gets it from its id."""
    return schedule.slug or f"schedule-{str(schedule.id)[:8]}"


def _register(
    client: SyncPrefectClient,
    flow: str,
    name: str,
    *,
    own: IntervalSchedule | None = None,
    first: Sequence[DeploymentScheduleCreate] = (),
    pool: str,
    **deployment: Any,
) -> UUID:
    """Registers a deployment; relative paths in study files start at its `working_dir`.

    **Arguments:** `own`: its fixed schedule; `first`: those that a new deployment has.
    """
    schedules = list(first)
    with suppress(ObjectNotFound):
        # Registration replaces all schedules, so it must pass those that users made, paused or
        # resumed again, and none that they removed. A run tells its schedule by the slug alone.
        schedules = [
            DeploymentScheduleCreate(
                schedule=schedule.schedule,
                active=schedule.active,
                max_scheduled_runs=schedule.max_scheduled_runs,
                parameters=schedule.parameters,
                slug=schedule_name(schedule),
            )
            for schedule in client.read_deployment_by_name(f"{flow}/{name}").schedules
            if schedule.slug != "reconcile"
        ]
    if own is not None:
        schedules.append(DeploymentScheduleCreate(schedule=own, slug=flow))
    return client.create_deployment(
        client.create_flow_from_name(flow),
        name,
        work_pool_name=pool,
        job_variables={
            "command": shlex.join(COMMAND),
            "working_dir": str(Path.cwd()),
            "env": VARIABLES,
        },
        schedules=schedules,
        **deployment,
    )


def register_automations(client: SyncPrefectClient, silence: timedelta = SILENCE) -> None:
    """Makes the server crash flow runs without an event for `silence` after a heartbeat.

    Their machine and worker are gone. Any event counts, because the event at the end of a run has
    its state's name, which is free.
    """
    automation = AutomationCore(
        name=AUTOMATION,
        description="Created by flows.deploy of Dynolab.",
        enabled=True,
        trigger=EventTrigger(
            type="event",
            posture=Posture.Proactive,
            match={"prefect.resource.id": "prefect.flow-run.*"},
            for_each={"prefect.resource.id"},
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.*"},
            threshold=1,
            within=silence,
        ),
        actions=[
            ChangeFlowRunState(
                type="change-flow-run-state",
                state=StateType.CRASHED,
                message=f"Its process sent no event for {silence}; run it again.",
            )
        ],
    )
    existing = client.read_automations_by_name(AUTOMATION)
    for duplicate in existing[1:]:
        client.delete_automation(duplicate.id)
    if existing:
        client.update_automation(existing[0].id, automation)
    else:
        client.create_automation(automation)


if __name__ == "__main__":
    main(alone=sys.argv[1:] == ["alone"])
