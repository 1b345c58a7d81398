"""What a Prefect server knows after registration, and what stays of people's own choices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolUpdate
from prefect.client.schemas.schedules import CronSchedule
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_CUSTOM_HEADERS,
    temporary_settings,
)

from flows import deploy

pytestmark = pytest.mark.services


def settings_of(servers: dict[str, str]) -> dict[Any, Any]:
    """Prefect's settings that lead to the servers and log in there."""
    return {
        PREFECT_API_URL: servers["PREFECT_API_URL"],
        PREFECT_CLIENT_CUSTOM_HEADERS: json.loads(servers["PREFECT_CLIENT_CUSTOM_HEADERS"]),
    }


@pytest.fixture(scope="module")
def client(servers: dict[str, str]) -> Iterator[SyncPrefectClient]:
    """A server that everything is registered with once."""
    with temporary_settings(settings_of(servers)), get_client(sync_client=True) as client:
        deploy.main()
        yield client


def test_what_people_chose_in_prefect_outlives_the_next_registration(
    client: SyncPrefectClient,
) -> None:
    one = client.read_deployment_by_name("study/a-study")
    early = CronSchedule(cron="0 5 * * *", timezone="Europe/Amsterdam")
    form = {deploy.PARAMETER: {"steps": 10}}
    made = DeploymentScheduleCreate(schedule=early, parameters=form)
    (first,) = client.create_deployment_schedules(one.id, [made])
    client.update_deployment_schedule(one.id, first.id, active=False)  # as pausing does
    client.update_work_pool("training", WorkPoolUpdate(concurrency_limit=3))
    for _ in range(2):
        deploy.main()
        (kept,) = client.read_deployment_by_name("study/a-study").schedules
        assert kept.schedule == early and not kept.active and kept.parameters == form
        assert client.read_work_pool("training").concurrency_limit == 3
    client.delete_deployment_schedule(one.id, kept.id)
    assert client.read_deployment_by_name("study/a-study").id == one.id


def test_what_people_start_most_is_listed_first_and_former_names_go(
    client: SyncPrefectClient,
) -> None:
    flow = client.create_flow_from_name("sweep")
    client.create_deployment(flow, "former", entrypoint="flows.deploy.sweep", tags=[deploy.TAG])
    client.create_deployment(flow, "their own", entrypoint="theirs.py:sweep", tags=[deploy.TAG])
    deploy.main()
    by_name = {one.name: one for one in client.read_deployments()}
    assert sorted(by_name)[:3] == ["a-study", "a-sweep", "all-remedies"]
    assert "their own" in by_name and "former" not in by_name
    assert by_name["~chapter-transfer"].tags == [deploy.TAG, "chapter"]
