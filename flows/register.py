"""The program that registers our pools, deployments and automations with a Prefect server.

    python -m flows.register [alone]    # alone: no worker runs yet
    python -m flows.register yaml       # writes deploy/prefect.yaml, for Prefect's own command

It is a separate program, so that the command that starts the servers need not load the flows.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import (
    DeploymentScheduleCreate,
    WorkPoolCreate,
    WorkPoolUpdate,
)
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.states import Cancelled, Crashed, State
from prefect.workers.process import ProcessWorker

from flows.deployments import DeploymentSpec, deployment_specs

POOLS = {"cpu": 4, "training": 1}
"""Work pools, and the concurrency limit that each is created with."""

FIRST = "high"
"""Queue of the training pool whose runs start before those in `default`."""

ENGINE = ("-m", "tasks.runtime.flow_run_process")
"""Arguments of python for a flow run, in place of Prefect's own engine."""

HEARTBEATS = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "60"}
"""Variables with which a flow run sends a heartbeat every minute."""

PATIENCE = {"PREFECT_CLIENT_MAX_RETRIES": "8", "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500"}
"""Variables with which a run waits eight minutes for a restarting server, which answers 500 while
its database is down."""

VARIABLES = HEARTBEATS | PATIENCE
COMMAND = [sys.executable, *ENGINE]

SILENCE = timedelta(minutes=10)
"""How long a flow run may send no event: several heartbeats, and a restart of the server."""

AUTOMATION = "dynolab: flow runs that fell silent have crashed"

FILE = Path(__file__).resolve().parents[1] / "deploy" / "prefect.yaml"

_HEAD = """\
# Written by `python -m flows.register yaml` from flows/registry.py and deploy/schedules.yaml: edit
# those. `make up` registers the same deployments. For your own Prefect server, with work pools
# `cpu` and `training`, run in the project's folder:
#
#     prefect deploy --all --prefect-file deploy/prefect.yaml
#
# Workers run the code installed on their machine: none is pulled.
"""


def main(*, alone: bool = False) -> None:
    """Registers every pool, deployment and automation, or updates it.

    **Arguments:** `alone`: no worker runs yet, so runs that the server lists as running are lost.
    """
    specs = list(deployment_specs())
    with get_client(sync_client=True) as client:
        if alone:
            close_lost_runs(client)
        for name, limit in POOLS.items():
            _register_pool(client, name, limit)
        _create_first_queue(client)
        for spec in specs:
            _register(client, spec)
        register_automations(client)


def close_lost_runs(client: SyncPrefectClient) -> None:
    """Closes runs that the server lists as running while no worker runs: their process is gone."""
    running = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
    lost = FlowRunFilter(
        tags=FlowRunFilterTags(all_=["dynolab"]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=running)),
    )
    for run in client.read_flow_runs(flow_run_filter=lost, limit=200):
        ended: State[None] = Crashed(message="The process that ran it has ended; run it again.")
        if run.state is not None and run.state.is_cancelling():
            ended = Cancelled()
        client.set_flow_run_state(run.id, ended, force=True)


def _register_pool(client: SyncPrefectClient, name: str, limit: int) -> None:
    """Creates or updates a process pool; leaves an existing pool of another type unchanged."""
    template = ProcessWorker.get_default_base_job_template()
    try:
        if client.read_work_pool(name).type == "process":
            client.update_work_pool(name, WorkPoolUpdate(base_job_template=template))
    except ObjectNotFound:
        client.create_work_pool(
            WorkPoolCreate(
                name=name, type="process", base_job_template=template, concurrency_limit=limit
            )
        )


def _create_first_queue(client: SyncPrefectClient) -> None:
    with suppress(ObjectAlreadyExists):
        client.create_work_queue(
            FIRST,
            "Its runs start before those of other queues.",
            priority=1,
            work_pool_name="training",
        )


def _users_schedules(
    client: SyncPrefectClient, spec: DeploymentSpec
) -> list[DeploymentScheduleCreate]:
    """The schedules that users made in Prefect: those without a slug, which the file's have.

    Registration replaces all of a deployment's schedules, so it must pass these again.
    """
    try:
        schedules = client.read_deployment_by_name(f"{spec.flow}/{spec.name}").schedules
    except ObjectNotFound:
        return []
    fields = {"schedule", "active", "max_scheduled_runs", "parameters"}
    return [
        DeploymentScheduleCreate(**{name: getattr(schedule, name) for name in fields})
        for schedule in schedules
        if schedule.slug is None
    ]


def _register(client: SyncPrefectClient, spec: DeploymentSpec) -> None:
    client.create_deployment(
        client.create_flow_from_name(spec.flow),
        spec.name,
        description=spec.description,
        entrypoint=spec.entrypoint,
        parameters=spec.parameters,
        parameter_openapi_schema=spec.schema,
        enforce_parameter_schema=spec.schema is not None,
        work_pool_name=spec.pool,
        job_variables=_job(),
        tags=spec.tags,
        schedules=[*spec.schedules, *_users_schedules(client, spec)],
    )


def _job() -> dict[str, Any]:
    """How a worker starts a run; relative paths in study files start at `working_dir`."""
    command = shlex.join(COMMAND)
    return {"command": command, "working_dir": str(Path.cwd()), "env": VARIABLES}


def register_automations(client: SyncPrefectClient, silence: timedelta = SILENCE) -> None:
    """Makes the server crash flow runs whose machine and worker are gone, after `silence`."""
    automation = crash_silent_runs(silence)
    existing = client.read_automations_by_name(AUTOMATION)
    for duplicate in existing[1:]:
        client.delete_automation(duplicate.id)
    if existing:
        client.update_automation(existing[0].id, automation)
    else:
        client.create_automation(automation)


def crash_silent_runs(silence: timedelta) -> AutomationCore:
    """The automation that crashes a flow run without an event for `silence` after a heartbeat.

    Any event counts, because the event at the end of a run has its state's name, which is free.
    """
    crash = ChangeFlowRunState(
        type="change-flow-run-state",
        state=StateType.CRASHED,
        message=f"Its process sent no event for {silence}; run it again.",
    )
    return AutomationCore(
        name=AUTOMATION,
        description="Created by flows.register of Dynolab.",
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
        actions=[crash],
    )


def prefect_yaml(specs: Iterable[DeploymentSpec]) -> str:
    """The text of `deploy/prefect.yaml`."""
    content = {"name": "dynolab", "pull": [], "deployments": [_deployment(spec) for spec in specs]}
    return _HEAD + yaml.safe_dump(content, sort_keys=False, width=100, allow_unicode=True)


def _deployment(spec: DeploymentSpec) -> dict[str, Any]:
    job = {"command": " ".join(("python", *ENGINE)), "env": dict(VARIABLES)}
    entry = {
        "name": spec.name,
        "description": spec.description,
        "entrypoint": spec.entrypoint,
        "parameters": spec.parameters,
        "tags": spec.tags,
        "work_pool": {"name": spec.pool, "job_variables": job},
        "schedules": [_schedule(schedule) for schedule in spec.schedules],
    }
    return {name: value for name, value in entry.items() if value}


def _schedule(schedule: DeploymentScheduleCreate) -> dict[str, Any]:
    clock: dict[str, Any]
    if isinstance(schedule.schedule, CronSchedule):
        clock = {"cron": schedule.schedule.cron, "timezone": schedule.schedule.timezone}
    else:
        assert isinstance(schedule.schedule, IntervalSchedule)
        clock = {"interval": schedule.schedule.interval.total_seconds()}
    entry = {**clock, "slug": schedule.slug, "parameters": schedule.parameters}
    return {name: value for name, value in entry.items() if value}


if __name__ == "__main__":
    if sys.argv[1:] == ["yaml"]:
        FILE.write_text(prefect_yaml(deployment_specs()), encoding="utf-8")
    else:
        main(alone=sys.argv[1:] == ["alone"])
