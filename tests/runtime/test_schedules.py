"""A deployment with a schedule gets its runs: Prefect's scheduler works on what is installed."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import IntervalSchedule

from tasks.runtime.servers.services import PREFECT, start_services
from tasks.runtime.system.secret_files import login_token

SECONDS = 90


@pytest.mark.services
def test_the_clock_starts_runs(tmp_path: Path) -> None:
    with start_services(tmp_path, [PREFECT]) as services:
        services.wait_ready()
        address = f"{services.addresses[PREFECT].url}/api"
        login = {"Authorization": f"Bearer {login_token(tmp_path)}"}
        with SyncPrefectClient(api=address, httpx_settings={"headers": login}) as client:
            hourly = IntervalSchedule(interval=timedelta(hours=1))
            client.create_deployment(
                client.create_flow_from_name("some"),
                "some",
                entrypoint="nothing.at.all",
                schedules=[DeploymentScheduleCreate(schedule=hourly, active=True)],
            )
            deadline = time.monotonic() + SECONDS
            while not client.read_flow_runs():
                assert time.monotonic() < deadline, services.services[0].log.read_text()[-3000:]
                time.sleep(0.2)
    assert "bulk DML" not in services.services[0].log.read_text()
