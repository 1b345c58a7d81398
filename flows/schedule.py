"""Schedules on the running platform's Prefect server: made, listed, paused, resumed, removed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pendulum.tz.local_timezone import get_local_timezone
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterStartTime,
)
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.client.schemas.sorting import FlowRunSort
from prefect.server.schemas.schedules import SCHEDULE_TYPES
from pydantic import TypeAdapter

from dynolab.errors import ConfigError, check_known
from flows.deployment.upkeep import schedule_name
from flows.registry import LISTED


def change_schedules(
    new: tuple[Path | None, str | None, str | None, Sequence[str]],
    switched: Mapping[bool | None, str | None],
) -> list[dict[str, Any]]:
    """Makes, resumes, pauses or removes schedules. **Returns** a row for each one that there is.

    **Arguments:** `new`: file, cron line, name and changes of one to make, if it has a file;
    `switched`: name of the one to resume (True), to pause (False) and to remove (None).

    **Raises** `ConfigError` if no server answers, for unknown names, and like `make`.
    """
    file, cron, name, changes = new
    if (file is None) != (cron is None):
        raise ConfigError("--cron", cron, "a new schedule needs both FILE and --cron")
    with get_client(sync_client=True) as client:
        if error := client.api_healthcheck():
            remedy = f"does not answer ({error}); start that server"
            raise ConfigError("PREFECT_API_URL", str(client.api_url), remedy)
        if file is not None and cron is not None:
            make(client, file, cron, name, changes)
        by_name = schedules(client)
        for active, chosen in switched.items():
            check_known("schedule", chosen, list(by_name))
            if chosen is not None and active is None:
                client.delete_deployment_schedule(by_name[chosen][0].id, by_name[chosen][1].id)
            elif chosen is not None:
                deployment, schedule = by_name[chosen]
                client.update_deployment_schedule(deployment.id, schedule.id, active=active)
        return [_row(client, name, *pair) for name, pair in sorted(schedules(client).items())]


def make(
    client: SyncPrefectClient, file: Path, cron: str, name: str | None, changes: Sequence[str]
) -> None:
    """Schedules a study file with changes, in the local time zone.

    A built-in file is read anew by each run. The text of any other file becomes part of the
    schedule, as a form in the browser may name only built-in ones.

    **Raises** `ConfigError`, before anything is made, for settings that cannot work, for a cron
    line that never fires, and for a name that is taken.
    """
    # Here, as they load every flow, which takes seconds: listing schedules needs none.
    from flows.deployment.deployments import deployments, flow_of
    from flows.flow import StagedFlow
    from flows.parameters.defaults import with_paths
    from flows.parameters.parse import STUDIES, read_settings, read_study, study_file
    from flows.sweep.run import check_sweep
    from tasks.runtime.open_platform import planning_platform
    from tasks.runtime.servers.run_names import PARAMETER

    file = study_file(file)
    content = read_settings(read_study(file), str(file))
    flow = flow_of(file.name, content) or "study"
    offered = next(candidate for candidate in deployments().values() if candidate.flow.name == flow)
    fields: dict[str, Any] = {"study_file": file.name, "other_settings": list(changes)}
    if file.resolve().parent != STUDIES:
        located = with_paths(offered.flow.parameters, content, file.resolve().parent)
        text = yaml.safe_dump(located, sort_keys=False)
        fields |= {"study_file": offered.first_file, "study_text": text}
    parameters: Any = offered.parameters(offered.form_model(**fields))
    if "study_text" in fields:
        fields["name"] = parameters.name  # else its runs would have the other file's name
    if isinstance(offered.flow, StagedFlow):
        offered.flow.plan(parameters, planning_platform())
    else:
        check_sweep(parameters)
    try:
        rule = CronSchedule(cron=cron, timezone=get_local_timezone().name)
        next_run(rule)
    except ValueError as error:
        remedy = "never fires; give minute, hour, day, month and weekday, such as '0 3 * * *'"
        raise ConfigError("--cron", cron, remedy) from error
    name = name or parameters.name
    if name in schedules(client):
        remedy = f"is a schedule's name already; give another, or remove that one: --remove {name}"
        raise ConfigError("--name", name, remedy)
    deployment = client.read_deployment_by_name(f"{flow}/{LISTED.get(offered.name, offered.name)}")
    schedule = DeploymentScheduleCreate(schedule=rule, slug=name, parameters={PARAMETER: fields})
    client.create_deployment_schedules(deployment.id, [schedule])


def schedules(
    client: SyncPrefectClient,
) -> dict[str, tuple[DeploymentResponse, DeploymentSchedule]]:
    """Every schedule that people made or may switch on, by name."""
    return {
        schedule_name(schedule): (deployment, schedule)
        for deployment in client.read_deployments()
        for schedule in deployment.schedules
        if schedule.slug != "reconcile"
    }


def next_run(rule: Any) -> str:
    """When a rule fires next. **Raises** `ValueError` for a date that never comes."""
    prefect_rule: Any = TypeAdapter(SCHEDULE_TYPES).validate_python(rule.model_dump())
    return ", ".join(
        f"{time.astimezone():%Y-%m-%d %H:%M}" for time in asyncio.run(prefect_rule.get_dates(1))
    )


def _row(
    client: SyncPrefectClient,
    name: str,
    deployment: DeploymentResponse,
    schedule: DeploymentSchedule,
) -> dict[str, Any]:
    """A schedule's name, deployment, rule, whether it is active, and its next and last run."""
    rule: Any = schedule.schedule
    zone = rule.timezone or "UTC"
    when = getattr(rule, "cron", None) or getattr(rule, "rrule", None) or f"every {rule.interval}"
    begun = client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id])),
        flow_run_filter=FlowRunFilter(start_time=FlowRunFilterStartTime(is_null_=False)),
        sort=FlowRunSort.START_TIME_DESC,
        limit=100,
    )
    last = (
        f"{run.start_time.astimezone():%Y-%m-%d %H:%M} {run.state_name}"
        for run in begun
        if run.start_time
        and (by := run.created_by)
        and (by.display_value == name or by.id == schedule.id)
    )
    return {
        "name": name,
        "deployment": deployment.name,
        "when": when if zone == get_local_timezone().name else f"{when} {zone}",
        "active": schedule.active,
        "next run": next_run(rule) if schedule.active else "",
        "last run": next(last, ""),
    }
