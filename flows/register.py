"""Registers work pools and deployments with a Prefect server.

    python -m flows.register [alone]

It is a program of its own, so that the command that starts the servers need not load the flows.
"""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
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
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.states import Cancelled, Crashed, State
from prefect.workers.process import ProcessWorker

from flows.automations import register_automations
from flows.entries import ENGINE, VARIABLES, Entry, entries
from tasks.runtime.launch.devices import host_devices
from tasks.runtime.launch.leases import limit_name

POOLS = {"cpu": 4, "training": 1}
"""Work pools, and how many runs each works on at once, until somebody chooses otherwise."""

FIRST = "high"
"""The training pool's queue whose runs start before those that wait in `default`."""

COMMAND = [sys.executable, *ENGINE]


def main(*, alone: bool = False) -> None:
    """Make the server know every pool and every deployment, whatever it knew before.

    `alone`: no worker is there yet, so that runs which the server believes at work are lost.
    """
    listed = list(entries())
    with get_client(sync_client=True) as client:
        if alone:
            close_lost_runs(client)
        for name, limit in POOLS.items():
            _pool(client, name, limit)
            _count_gpus(client, name)
        _first_queue(client)
        for one in listed:
            _register(client, one)
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
            FIRST,
            "Its runs start before those of other queues.",
            priority=1,
            work_pool_name="training",
        )


def _made_by_people(client: SyncPrefectClient, one: Entry) -> list[DeploymentScheduleCreate]:
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


def _register(client: SyncPrefectClient, one: Entry) -> None:
    client.create_deployment(
        client.create_flow_from_name(one.flow),
        one.name,
        description=one.description,
        entrypoint=one.entrypoint,
        parameters=one.parameters,
        parameter_openapi_schema=one.schema,
        enforce_parameter_schema=one.schema is not None,
        work_pool_name=one.pool,
        job_variables=_job(),
        tags=one.tags,
        schedules=[*one.schedules, *_made_by_people(client, one)],
    )


def _job() -> dict[str, Any]:
    """How a worker starts a run: from the folder that relative paths in study files start at."""
    command = shlex.join(COMMAND)
    return {"command": command, "working_dir": str(Path.cwd()), "env": VARIABLES}


if __name__ == "__main__":
    main(alone=sys.argv[1:] == ["alone"])
