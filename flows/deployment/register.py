"""Registers Prefect's deployments: one for every form of every flow, and one to reconcile.

It is a separate program, `python -m flows.deploy`, so that the command that starts the servers need
not load the flows.
"""

from __future__ import annotations

import gc
import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from pendulum.tz.local_timezone import get_local_timezone
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.workers.process import ProcessWorker

from flows.deployment import checks
from flows.deployment.alerts import VARIABLE, register_alerts
from flows.deployment.deployments import deployments
from flows.deployment.upkeep import (
    TAG,
    close_lost_runs,
    crash_silent_runs,
    keep_one_late_run,
    schedule_name,
)
from flows.registry import LISTED, REGISTRY
from tasks.runtime.servers.run_names import PARAMETER
from tasks.runtime.servers.services import PATIENCE
from tasks.runtime.system.settings import Settings

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

RECONCILE = (
    "Send unsent runs to MLflow, kill orphaned processes, keep one waiting run a schedule. Every "
    "ten minutes; takes seconds; has no page."
)

READY_SECONDS = 5.0

VARIABLES = {
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "60",  # seconds
    **PATIENCE,
}
"""Environment of a flow run."""

COMMAND = [sys.executable, "-m", "tasks.runtime.flow_run_process"]
"""Of a flow run, in place of Prefect's own engine."""


def main(*, alone: bool = False) -> None:
    """Registers every pool, deployment and automation, or updates it.

    **Arguments:** `alone`: no worker runs yet, so runs that the server lists as running are lost;
    in the end, this process checks filled forms until it is ended.
    """
    with get_client(sync_client=True) as client:
        if alone:
            close_lost_runs(client)
            print("\n".join(keep_one_late_run(client)))  # `dynolab up` shows these lines
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
                tags=[TAG, REGISTRY[offered.flow.name].tag],
            )
            for name, offered in deployments().items()
        ]
        registered.append(
            _register(
                client,
                "reconcile",
                LISTED["reconcile"],
                interval=IntervalSchedule(interval=timedelta(minutes=10)),
                entrypoint="flows.deploy.reconcile",
                description=RECONCILE,
                pool="cpu",
                tags=[TAG, "maintenance"],
            )
        )
        ours_only = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
        for former in client.read_deployments(deployment_filter=ours_only):  # that had other names
            ours = str(former.entrypoint).startswith("flows.deploy.")
            if ours and former.id not in registered and not former.schedules:
                client.delete_deployment(former.id)
        if alone:
            show_ready(client)
        crash_silent_runs(client)
        register_alerts(client, os.environ.get(VARIABLE))
    gc.enable()
    if alone:
        checks.serve(Settings.from_environment().home)


def show_ready(client: SyncPrefectClient) -> None:
    """Asks for runs as the workers will in a moment, until deployments are listed as ready."""
    until = time.monotonic() + READY_SECONDS
    study = f"study/{LISTED['study']}"
    while client.read_deployment_by_name(study).status != "READY" and time.monotonic() < until:
        for name in POOLS:
            client.get_scheduled_flow_runs_for_work_pool(name)
        time.sleep(0.1)


def _register(
    client: SyncPrefectClient,
    flow: str,
    name: str,
    *,
    interval: IntervalSchedule | None = None,
    first: Sequence[DeploymentScheduleCreate] = (),
    pool: str,
    **deployment: Any,
) -> UUID:
    """Registers a deployment, unless it is as it should be: each takes the server a while.

    Relative paths in study files start at its `working_dir`.

    **Arguments:** `interval`: its fixed schedule; `first`: those that a new deployment has.
    """
    schedules = list(first)
    deployment |= {
        "work_pool_name": pool,
        "enforce_parameter_schema": True,
        "job_variables": {
            "command": shlex.join(COMMAND),
            "working_dir": str(Path.cwd()),
            "env": VARIABLES,
        },
    }
    with suppress(ObjectNotFound):
        former = client.read_deployment_by_name(f"{flow}/{name}")
        as_it_should_be = all(
            getattr(former, setting) == value for setting, value in deployment.items()
        )
        if as_it_should_be and interval is None and all(one.slug for one in former.schedules):
            return former.id
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
            for schedule in former.schedules
            if schedule.slug != "reconcile"
        ]
    if interval is not None:
        schedules.append(DeploymentScheduleCreate(schedule=interval, slug=flow))
    return client.create_deployment(
        client.create_flow_from_name(flow), name, schedules=schedules, **deployment
    )
