"""The platform as one command: a run from its form, and an end that leaves nothing."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import CronSchedule

from tests.flows.lab import SMALL, Lab, until
from tests.platform.conftest import RUN_SECONDS, Platform, platform_of

pytestmark = [pytest.mark.services, pytest.mark.study]


def test_a_run_from_its_form_and_a_form_that_cannot_work(platform: Platform) -> None:
    text = SMALL.read_text()
    good = platform.start("train/sft", study_text=text, name="from a form", steps=4)
    bad = platform.start("train/preference", study_text=text, objective="ipo", margin=1.0)
    assert platform.awaited_end(bad) == "Failed"
    assert (
        "preference.objective.margin = 1.0" in platform.read(f"flow_runs/{bad}")["state"]["message"]
    )
    assert platform.awaited_end(good) == "Completed"
    stages = platform.lab.home / "store" / "stages"
    assert {path.parent.parent.name for path in stages.glob("*/*/COMMITTED")} == {
        "data",
        "base",
        "sft",
    }
    sft = platform.read("deployments/name/train/sft")["id"]
    wrong = {"settings": {"study_file": "builtin.yaml", "steps": "many"}}
    answer = requests.post(
        f"{platform.prefect}/api/deployments/{sft}/create_flow_run",
        json={"parameters": wrong},
        headers=platform.login,
        timeout=30,
    )
    assert answer.status_code == 409 and "steps" in answer.text


def test_a_sweep_by_the_clock_has_its_trials_run_by_the_training_worker(
    platform: Platform,
) -> None:
    sweep = {
        "name": "clock",
        "study": str(SMALL),
        "stage": "preference",
        "metric": "train/loss",
        "direction": "minimize",
        "space": {"preference.objective.beta": {"values": [0.1, 1.0]}},
        "settings": ["preference.engine={kind: plain, ranks: 1}"],
    }
    form = {"study_file": "sweep_beta.yaml", "study_text": yaml.safe_dump(sweep)}
    minutely = DeploymentScheduleCreate(
        schedule=CronSchedule(cron="* * * * *"), parameters={"settings": form}
    )
    login = {"headers": platform.login}
    with SyncPrefectClient(f"{platform.prefect}/api", httpx_settings=login) as client:
        deployment = client.read_deployment_by_name("sweep/sweep")
        (schedule,) = client.create_deployment_schedules(deployment.id, [minutely])
        first = until(lambda: runs_of(platform, "sweep", "RUNNING", "COMPLETED"), RUN_SECONDS)[0]
        client.delete_deployment_schedule(deployment.id, schedule.id)
    assert platform.awaited_end(first["id"]) == "Completed"
    assert first["work_pool_name"] == "cpu"
    trials = runs_of(platform, "~internal-trial", "COMPLETED")
    assert {trial["work_pool_name"] for trial in trials} == {"training"}
    assert sorted(trial["name"] for trial in trials) == [
        "clock 0: beta = 0.1",
        "clock 1: beta = 1.0",
    ]


def runs_of(platform: Platform, deployment: str, *states: str) -> list[dict[str, Any]]:
    """A deployment's runs that are in one of the states."""
    return platform.ask(
        "flow_runs/filter",
        deployments={"name": {"any_": [deployment]}},
        flow_runs={"state": {"type": {"any_": list(states)}}},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_command_is_the_end_of_all_it_started(tmp_path: Path, number: int) -> None:
    lab = Lab(tmp_path)
    with platform_of(lab) as platform:
        run = platform.start("train/preference", study_text=SMALL.read_text())
        until(lambda: list(lab.home.glob("scratch/*")), RUN_SECONDS)
        assert len(lab.processes()) > 4
        began = time.monotonic()
        code = platform.end(number)
        assert code == (-number if number == signal.SIGKILL else 0)
    until(lambda: not lab.processes(), 30)
    assert time.monotonic() - began < 60
    assert not (lab.home / "services.json").exists() or number == signal.SIGKILL
    if number == signal.SIGKILL:
        with platform_of(lab) as again:
            assert again.state(run) == "Crashed", "nobody works on it any more"
