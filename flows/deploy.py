"""Prefect deployments: one for every form of every flow, and one to reconcile.

    python -m flows.deploy [alone]    # registers them

alone: no worker runs yet; it then goes on and checks filled forms for the server.

Prefect imports an entry by its dotted name, `flows.deploy.<name>`. Registration is a separate
program, so that the command that starts the servers need not load the flows.
"""

from __future__ import annotations

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

import prefect
from pendulum.tz.local_timezone import get_local_timezone
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.workers.process import ProcessWorker

from flows.deployment import checks
from flows.deployment.alerts import VARIABLE, register_alerts
from flows.deployment.deployments import LISTED, deployments
from flows.deployment.upkeep import (
    TAG,
    close_lost_runs,
    crash_silent_runs,
    delete_completed_runs,
    keep_one_late_run,
    schedule_name,
)
from flows.registry import REGISTRY
from tasks.runtime.cleanup import clean_up
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

READY_SECONDS = 5.0

VARIABLES = {
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "60",  # seconds
    **PATIENCE,
}
"""Environment of a flow run."""

COMMAND = [sys.executable, "-m", "tasks.runtime.flow_run_process"]
"""Of a flow run, in place of Prefect's own engine."""


def __getattr__(name: str) -> prefect.Flow[..., Any]:
    by_name = deployments()
    if name not in by_name:
        raise AttributeError(name)
    return by_name[name].prefect_flow()


def main(*, alone: bool = False) -> None:
    """Registers every pool, deployment and automation, or updates it.

    **Arguments:** `alone`: no worker runs yet, so runs that the server lists as running are lost.
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
                interval=IntervalSchedule(interval=timedelta(minutes=10)),
                entrypoint="flows.deploy.reconcile",
                description=f"{reconcile.__doc__} Every ten minutes; takes seconds; has no page.",
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


def show_ready(client: SyncPrefectClient) -> None:
    """Asks for runs as the workers will in a moment, until deployments are listed as ready."""
    until = time.monotonic() + READY_SECONDS
    study = f"study/{LISTED['study']}"
    while client.read_deployment_by_name(study).status != "READY" and time.monotonic() < until:
        for name in POOLS:
            client.get_scheduled_flow_runs_for_work_pool(name)
        time.sleep(0.1)


@prefect.flow(name="reconcile")
def reconcile() -> dict[str, int]:
    """Send unsent runs to MLflow, kill orphaned processes, keep one waiting run a schedule."""
    counts = clean_up(Settings.from_environment())
    with get_client(sync_client=True) as client:
        delete_completed_runs(client)
        keep_one_late_run(client)
    return counts


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
    """Registers a deployment; relative paths in study files start at its `working_dir`.

    **Arguments:** `interval`: its fixed schedule; `first`: those that a new deployment has.
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
    if interval is not None:
        schedules.append(DeploymentScheduleCreate(schedule=interval, slug=flow))
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


if __name__ == "__main__":
    is_alone = sys.argv[1:] == ["alone"]
    main(alone=is_alone)
    if is_alone:
        checks.serve(Settings.from_environment().home)
