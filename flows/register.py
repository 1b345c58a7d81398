"""Registers work pools and deployments with a Prefect server.

    python -m flows.register

It is a program of its own, so that the command that starts the servers need not load the flows.
"""

from __future__ import annotations

import shlex
import sys
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
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed, State
from prefect.workers.process import ProcessWorker
from pydantic import BaseModel, ConfigDict, Field, RootModel

from dynolab.errors import ConfigError
from flows.deployments import PARAMETER, Deployed, deployments
from flows.parameters import read_settings, read_study, validated

POOLS = {"cpu": 4, "training": 1}
"""Work pools, and how many runs each works on at once."""

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
        for one in known.values():
            _register(client, one, schedules.get(one.name, []))
        _register_trials(client)


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
    template = ProcessWorker.get_default_base_job_template()
    try:
        client.read_work_pool(name)
        client.update_work_pool(
            name, WorkPoolUpdate(base_job_template=template, concurrency_limit=limit)
        )
    except ObjectNotFound:
        client.create_work_pool(
            WorkPoolCreate(
                name=name, type="process", base_job_template=template, concurrency_limit=limit
            )
        )


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
        schedules=[_schedule(one, written) for written in schedules],
    )


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


def _job() -> dict[str, str]:
    """How a worker starts a run: from the folder that relative paths in study files start at."""
    return {"command": shlex.join(COMMAND), "working_dir": str(Path.cwd())}


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
