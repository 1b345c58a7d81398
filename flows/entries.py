"""Every deployment as Prefect is told of it: by registration, or by `deploy/prefect.yaml`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import IntervalSchedule

from flows.automations import HEARTBEATS
from flows.cli import FLOWS
from flows.deployments import PARAMETER, Pool, deployments
from flows.forms.families import FileForm
from flows.reconcile import reconcile
from flows.schedules import SCHEDULES, read_schedules

ENGINE = ("-m", "tasks.runtime.engine")
"""What python runs for a flow run, in place of Prefect's own engine."""

PATIENCE = {"PREFECT_CLIENT_MAX_RETRIES": "8", "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500"}
"""A run waits eight minutes for a server that restarts; one without its database answers 500."""

VARIABLES = HEARTBEATS | PATIENCE
RECONCILE_EVERY = timedelta(minutes=10)


@dataclass(frozen=True)
class Entry:
    """One deployment; `schema` is its form, which people fill."""

    flow: str
    name: str
    entrypoint: str
    pool: Pool
    description: str | None
    parameters: dict[str, Any] = field(default_factory=dict)
    schema: dict[str, Any] | None = None
    schedules: tuple[DeploymentScheduleCreate, ...] = ()

    @property
    def tags(self) -> list[str]:
        """People look for those that have a form."""
        return ["dynolab"] if self.schema is not None else ["dynolab", "internal"]


def entries() -> Iterator[Entry]:
    """All deployments; raises `ConfigError` for schedules that cannot be."""
    known = deployments()
    schedules = read_schedules(SCHEDULES, known)
    for one in known.values():
        yield Entry(
            one.flow,
            one.name,
            f"flows.deployed.{one.name}",
            one.pool,
            FLOWS[one.flow] if one.form is FileForm else one.form.__doc__,
            parameters={PARAMETER: {"study_file": one.first_file, "fresh": False}},
            schema=one.schema,
            schedules=tuple(written.of(one) for written in schedules.get(one.name, [])),
        )
    yield Entry(
        "trial",
        "trial",
        "flows.trial.trial",
        "training",
        "One trial of a sweep, started by the sweep.",
    )
    by_the_clock = IntervalSchedule(interval=RECONCILE_EVERY)
    yield Entry(
        "reconcile",
        "reconcile",
        "flows.reconcile.reconcile",
        "cpu",
        reconcile.__doc__,
        schedules=(DeploymentScheduleCreate(schedule=by_the_clock, slug="reconcile"),),
    )
