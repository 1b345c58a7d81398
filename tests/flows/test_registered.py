"""What a Prefect server knows after registration, and what stays of people's own choices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
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

from dynolab.errors import ConfigError
from flows import register
from flows.deployments import deployment_specs
from tasks.runtime.launch import leases
from tasks.runtime.launch.leases import gpu_slots, limit_name
from tests.flows.lab import ROOT

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
    with (
        temporary_settings(settings_of(servers)),
        get_client(sync_client=True) as client,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("DYNOLAB_DEVICES", "0,1,2")
        register.main()
        yield client


def test_each_pool_counts_the_gpus_of_this_host(client: SyncPrefectClient) -> None:
    for pool in register.POOLS:
        limit = client.read_global_concurrency_limit_by_name(limit_name(pool))
        assert (limit.limit, limit.active_slots) == (3, 0)


def test_runs_of_the_first_queue_start_before_those_that_waited_longer(
    client: SyncPrefectClient,
) -> None:
    one = client.read_deployment_by_name("train/sft").id
    given = {"settings": {"study_file": "builtin.yaml"}}
    late = client.create_flow_run_from_deployment(one, parameters=given)
    urgent = client.create_flow_run_from_deployment(
        one, parameters=given, work_queue_name=register.FIRST
    )
    started = []
    for _ in range(2):  # the pool has one place
        (given_out,) = client.get_scheduled_flow_runs_for_work_pool("training")
        started.append(given_out.flow_run.id)
        client.delete_flow_run(started[-1])
    assert started == [urgent.id, late.id]


def test_what_people_chose_in_prefect_outlives_the_next_registration(
    client: SyncPrefectClient,
) -> None:
    one = client.read_deployment_by_name("study/study")
    early = CronSchedule(cron="0 5 * * *", timezone="Europe/Amsterdam")
    client.create_deployment_schedules(one.id, [(early, False)])
    client.update_work_pool("training", WorkPoolUpdate(concurrency_limit=3))
    for _ in range(2):
        register.main()
        (kept,) = client.read_deployment_by_name("study/study").schedules
        assert kept.schedule == early and not kept.active
        assert client.read_work_pool("training").concurrency_limit == 3
    client.delete_deployment_schedule(one.id, kept.id)
    assert client.read_deployment_by_name("study/study").id == one.id


@pytest.mark.study
def test_prefects_own_command_deploys_the_same(
    client: SyncPrefectClient, servers: dict[str, str], tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "prefect",
        "--no-prompt",
        "deploy",
        "--all",
        "--prefect-file",
        "deploy/prefect.yaml",
    ]
    environment = os.environ | servers | {"PREFECT_HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for deployment_spec in deployment_specs():
        found = client.read_deployment_by_name(f"{deployment_spec.flow}/{deployment_spec.name}")
        assert (found.entrypoint, found.work_pool_name) == (
            deployment_spec.entrypoint,
            deployment_spec.pool,
        )
        assert found.parameters == deployment_spec.parameters and set(found.tags) == set(
            deployment_spec.tags
        )
        if deployment_spec.schema is not None:
            theirs = found.parameter_openapi_schema["definitions"]
            for kind, ours in deployment_spec.schema["definitions"].items():
                assert theirs[kind].get("properties", {}).keys() == ours["properties"].keys()


def test_a_training_holds_as_many_slots_as_it_has_ranks(
    client: SyncPrefectClient, servers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken() -> int:
        return client.read_global_concurrency_limit_by_name("gpu:training").active_slots

    monkeypatch.setattr(leases, "_pool", lambda: "training")
    with temporary_settings(settings_of(servers)):
        with gpu_slots(2):
            assert taken() == 2
            with gpu_slots(1):
                assert taken() == 3
        assert taken() == 0
        with pytest.raises(RuntimeError, match="training failed"), gpu_slots(3):
            raise RuntimeError("training failed")
        assert taken() == 0
        with pytest.raises(ConfigError, match="gpu:training = 3: 4 GPUs are asked"), gpu_slots(4):
            pass
        monkeypatch.setattr(leases, "_pool", lambda: "elsewhere")
        monkeypatch.setattr(leases, "LEASE_SECONDS", None)  # none is asked for
        with gpu_slots(1):
            assert taken() == 0


def test_a_server_that_is_away_at_the_end_costs_no_training(
    client: SyncPrefectClient,
    servers: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(leases, "_pool", lambda: "training")
    with ExitStack() as held:
        with temporary_settings(settings_of(servers)):
            held.enter_context(gpu_slots(1))
        with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
            held.close()
    assert "the lease of gpu:training was lost before its end" in caplog.text
