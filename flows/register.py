"""Registers work pools and deployments with a Prefect server.

    python -m flows.register

It is a program of its own, so that the command that starts the servers need not load the flows.
"""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

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
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.states import Cancelled, Crashed, State
from prefect.workers.process import ProcessWorker
from pydantic import BaseModel, ConfigDict, Field, RootModel

from dynolab.errors import ConfigError
from flows.automations import HEARTBEATS, register_automations
from flows.deployments import PARAMETER, Deployed, deployments
from flows.parameters import read_settings, read_study, validated
from flows.reconcile import reconcile
from tasks.runtime.devices import host_devices
from tasks.runtime.leases import limit_name

POOLS = {"cpu": 4, "training": 1}
"""Work pools, and how many runs each works on at once, until somebody chooses otherwise."""

FIRST = "high"
"""The training pool's queue whose runs start before those that wait in `default`."""

RECONCILE_EVERY = timedelta(minutes=10)
PATIENCE = {"PREFECT_CLIENT_MAX_RETRIES": "8", "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500"}
"""A run waits eight minutes for a server that restarts; one without its database answers 500."""

SCHEDULES = Path(__file__).resolve().parents[1] / "deploy" / "schedules.yaml"
COMMAND = [sys.executable, "-m", "tasks.runtime.engine"]


def main() -> None:
    """Make the server know every pool and every deployment, whatever it knew before."""
    schedules = read_schedules(SCHEDULES)
    known = deployments()
    for name in schedules:
        if name not in known:
            raise ConfigError("schedules", name, f"name a deployment: {', '.join(known)}")
    with get_client(sync_client=True) as client:
        close_lost_runs(client)
        for name, limit in POOLS.items():
            _pool(client, name, limit)
            _count_gpus(client, name)
        _first_queue(client)
        for one in known.values():
            _register(client, one, schedules.get(one.name, []))
        _register_trials(client)
        _register_reconciler(client)
        register_automations(client)


def close_lost_runs(client: SyncPrefectClient) -> None:
    """Runs that the server believes at work while no worker is there yet: their process is gone."""
    at_work = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
    lost = FlowRunFilter(
        tags=FlowRunFilterTags(all_=["dynolab"]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=at_work)),
    )
    for run in client.read_flow_runs(flow_run_filter=lost, limit=200):
        ended: State[None] = Crashed(
            message="The command that worked on it has ended; run it again."
        )
        if run.state is not None and run.state.is_cancelling():
            ended = Cancelled()
        client.set_flow_run_state(run.id, ended, force=True)


class Schedule(BaseModel):
    """When a deployment runs by the clock, and with which form."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = "schedule"
    cron: str
    timezone: str = "UTC"
    settings: dict[str, Any] = Field(default_factory=dict)
    """Fields of the form."""


def read_schedules(file: Path) -> dict[str, list[Schedule]]:
    """Deployment → its schedules; raises `ConfigError` for what is none."""
    if not file.exists():
        return {}
    content = read_settings(read_study(file), str(file))
    written = {name: listed or [] for name, listed in content.items()}
    return validated(RootModel[dict[str, list[Schedule]]], written).root


def _pool(client: SyncPrefectClient, name: str, limit: int) -> None:
    """A pool of processes; one of another type (Kubernetes) is its makers', and stays as it is."""
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


def _count_gpus(client: SyncPrefectClient, pool: str) -> None:
    """As many slots as this host has GPUs, for trainings to lease; none are leased without GPUs."""
    if gpus := len(host_devices()):
        client.upsert_global_concurrency_limit_by_name(limit_name(pool), gpus)


def _first_queue(client: SyncPrefectClient) -> None:
    with suppress(ObjectAlreadyExists):
        client.create_work_queue(
            FIRST, "Its runs start before those of other queues.", priority=1,
            work_pool_name="training",
        )  # fmt: skip


def _made_by_people(client: SyncPrefectClient, one: Deployed) -> list[DeploymentScheduleCreate]:
    """Schedules that were made in Prefect: without a slug, which those of the file have.

    Registration replaces all of a deployment's schedules, so these are given once more.
    """
    try:
        known = client.read_deployment_by_name(f"{one.flow}/{one.name}").schedules
    except ObjectNotFound:
        return []
    kept = {"schedule", "active", "max_scheduled_runs", "parameters"}
    return [
        DeploymentScheduleCreate(**{name: getattr(schedule, name) for name in kept})
        for schedule in known
        if schedule.slug is None
    ]


def _register(client: SyncPrefectClient, one: Deployed, schedules: list[Schedule]) -> None:
    flow_id = client.create_flow_from_name(one.flow)
    client.create_deployment(
        flow_id,
        one.name,
        description=one.form.__doc__,
        entrypoint=f"flows.deployed.{one.name}",
        parameters={PARAMETER: {"study_file": one.first_file, "fresh": False}},
        parameter_openapi_schema=one.schema,
        enforce_parameter_schema=True,
        work_pool_name=one.pool,
        job_variables=_job(),
        tags=["dynolab"],
        schedules=[
            *(_schedule(one, written) for written in schedules), *_made_by_people(client, one),
        ],
    )  # fmt: skip


def _register_trials(client: SyncPrefectClient) -> None:
    """What a sweep starts; people start sweeps."""
    client.create_deployment(
        client.create_flow_from_name("trial"),
        "trial",
        description="One trial of a sweep, started by the sweep.",
        entrypoint="flows.trial.trial",
        work_pool_name="training",
        job_variables=_job(),
        tags=["dynolab", "internal"],
    )


def _register_reconciler(client: SyncPrefectClient) -> None:
    """What sets right, by the clock, what dead processes left."""
    client.create_deployment(
        client.create_flow_from_name("reconcile"),
        "reconcile",
        description=reconcile.__doc__,
        entrypoint="flows.reconcile.reconcile",
        work_pool_name="cpu",
        job_variables=_job(),
        tags=["dynolab", "internal"],
        schedules=[
            DeploymentScheduleCreate(
                schedule=IntervalSchedule(interval=RECONCILE_EVERY), active=True, slug="reconcile"
            )
        ],
    )


def _job() -> dict[str, Any]:
    """How a worker starts a run: from the folder that relative paths in study files start at."""
    variables = HEARTBEATS | PATIENCE
    return {"command": shlex.join(COMMAND), "working_dir": str(Path.cwd()), "env": variables}


def _schedule(one: Deployed, written: Schedule) -> DeploymentScheduleCreate:
    settings = validated(one.form, {"study_file": one.first_file} | written.settings)
    clock = {"cron": written.cron, "timezone": written.timezone}
    return DeploymentScheduleCreate(
        schedule=validated(CronSchedule, clock),
        parameters={PARAMETER: settings.model_dump(mode="json", exclude_none=True)},
        active=True,
        slug=written.name,
    )


if __name__ == "__main__":
    main()
