"""Writes `deploy/prefect.yaml`, for those who deploy with Prefect's own command.

python -m flows.prefect_yaml
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule

from flows.entries import ENGINE, VARIABLES, Entry, entries

FILE = Path(__file__).resolve().parents[1] / "deploy" / "prefect.yaml"
_HEAD = """\
# Made by `python -m flows.prefect_yaml` from flows/entries.py and deploy/schedules.yaml, which are
# the places for changes. `make up` registers the same by itself; for a Prefect server of your own,
# with work pools `cpu` and `training`, from the project's folder:
#
#     prefect deploy --all --prefect-file deploy/prefect.yaml
#
# Workers run what is installed where they run: no code is pulled.
"""


def prefect_yaml(listed: Iterable[Entry]) -> str:
    """The file's text."""
    content = {"name": "dynolab", "pull": [], "deployments": [_deployment(one) for one in listed]}
    return _HEAD + yaml.safe_dump(content, sort_keys=False, width=100, allow_unicode=True)


def _deployment(one: Entry) -> dict[str, Any]:
    job = {"command": " ".join(("python", *ENGINE)), "env": dict(VARIABLES)}
    told = {
        "name": one.name,
        "description": one.description,
        "entrypoint": one.entrypoint,
        "parameters": one.parameters,
        "tags": one.tags,
        "work_pool": {"name": one.pool, "job_variables": job},
        "schedules": [_schedule(schedule) for schedule in one.schedules],
    }
    return {name: value for name, value in told.items() if value}


def _schedule(one: DeploymentScheduleCreate) -> dict[str, Any]:
    clock: dict[str, Any]
    if isinstance(one.schedule, CronSchedule):
        clock = {"cron": one.schedule.cron, "timezone": one.schedule.timezone}
    else:
        assert isinstance(one.schedule, IntervalSchedule)
        clock = {"interval": one.schedule.interval.total_seconds()}
    told = {**clock, "slug": one.slug, "parameters": one.parameters}
    return {name: value for name, value in told.items() if value}


if __name__ == "__main__":
    FILE.write_text(prefect_yaml(entries()), encoding="utf-8")
