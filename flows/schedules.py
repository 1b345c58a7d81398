"""Runs by the clock, as `deploy/schedules.yaml` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import CronSchedule
from pydantic import BaseModel, ConfigDict, Field, RootModel

from dynolab.errors import ConfigError
from flows.deployments import PARAMETER, Deployed
from flows.parameters import read_settings, read_study, validated

SCHEDULES = Path(__file__).resolve().parents[1] / "deploy" / "schedules.yaml"


class Schedule(BaseModel):
    """When a deployment runs by the clock, and with which form."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = "schedule"
    cron: str
    timezone: str = "UTC"
    settings: dict[str, Any] = Field(default_factory=dict)
    """Fields of the form."""

    def of(self, one: Deployed) -> DeploymentScheduleCreate:
        """The schedule as Prefect is told of it; raises `ConfigError` for what cannot be."""
        settings = validated(one.form, {"study_file": one.first_file} | self.settings)
        clock = {"cron": self.cron, "timezone": self.timezone}
        return DeploymentScheduleCreate(
            schedule=validated(CronSchedule, clock),
            parameters={PARAMETER: settings.model_dump(mode="json", exclude_none=True)},
            active=True,
            slug=self.name,
        )


def read_schedules(file: Path, known: dict[str, Deployed]) -> dict[str, list[Schedule]]:
    """Deployment → its schedules; raises `ConfigError` for what is none, and of none."""
    if not file.exists():
        return {}
    content = read_settings(read_study(file), str(file))
    written = {name: listed or [] for name, listed in content.items()}
    for name in written:
        if name not in known:
            raise ConfigError("schedules", name, f"name a deployment: {', '.join(known)}")
    return validated(RootModel[dict[str, list[Schedule]]], written).root
