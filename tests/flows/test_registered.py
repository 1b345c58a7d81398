"""What a Prefect server knows after registration, and what stays of people's own choices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolUpdate
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
    client.create_deployment_schedules(one.id, [(early, False)])
    client.update_work_pool("training", WorkPoolUpdate(concurrency_limit=3))
    for _ in range(2):
        deploy.main()
        (kept,) = client.read_deployment_by_name("study/a-study").schedules
        assert kept.schedule == early and not kept.active
        assert client.read_work_pool("training").concurrency_limit == 3
    client.delete_deployment_schedule(one.id, kept.id)
    assert client.read_deployment_by_name("study/a-study").id == one.id
