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
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from flows import deployments as deployments_module, register
from tests.flows.lab import SMALL, Lab, until
from tests.platform.conftest import Platform, platform_of

pytestmark = [pytest.mark.services, pytest.mark.study]
RUN_SECONDS = 300.0


def api(platform: Platform, path: str, **body: Any) -> Any:
    """Asks again where the server is too busy (503), as Prefect's own client does."""
    again = Retry(5, status_forcelist=[503], allowed_methods=None, backoff_factor=0.5)
    with requests.Session() as session:
        session.mount("http://", HTTPAdapter(max_retries=again))
        session.headers.update(platform.login)
        answer = session.post(f"{platform.prefect}/api/{path}", json=body, timeout=30)
    assert answer.ok, answer.text
    return answer.json()


def deployment(platform: Platform, name: str) -> dict[str, Any]:
    found: dict[str, Any] = requests.get(
        f"{platform.prefect}/api/deployments/name/{name}", headers=platform.login, timeout=30
    ).json()
    return found


def start(platform: Platform, name: str, /, **settings: Any) -> str:
    form = {"settings": {"study_file": "builtin.yaml", **settings}}
    one = deployment(platform, name)["id"]
    return str(api(platform, f"deployments/{one}/create_flow_run", parameters=form)["id"])


def ended(platform: Platform, run: str) -> str:
    return str(until(lambda: platform.end_of(run), RUN_SECONDS))


def test_a_run_from_its_form_and_a_form_that_cannot_work(platform: Platform) -> None:
    text = SMALL.read_text()
    good = start(platform, "train/sft", study_text=text, name="from a form", steps=4)
    bad = start(platform, "train/preference", study_text=text, objective="ipo", margin=1.0)
    assert ended(platform, bad) == "Failed"
    said = requests.get(
        f"{platform.prefect}/api/flow_runs/{bad}", headers=platform.login, timeout=30
    ).json()["state"]
    assert "ipo does not take it" in said["message"]
    assert ended(platform, good) == "Completed"
    stages = platform.lab.home / "store" / "stages"
    assert {path.parent.parent.name for path in stages.glob("*/*/COMMITTED")} == {
        "data",
        "base",
        "sft",
    }
    one = deployment(platform, "train/sft")["id"]
    wrong = {"settings": {"study_file": "builtin.yaml", "steps": "many"}}
    answer = requests.post(
        f"{platform.prefect}/api/deployments/{one}/create_flow_run",
        json={"parameters": wrong},
        headers=platform.login,
        timeout=30,
    )
    assert answer.status_code == 409 and "steps" in answer.text


def test_a_sweep_by_the_clock_has_its_trials_run_by_the_training_worker(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    minutely = {
        "name": "minutely",
        "cron": "* * * * *",
        "settings": {"study_text": yaml.safe_dump(sweep)},
    }
    file = tmp_path / "schedules.yaml"
    file.write_text(yaml.safe_dump({"sweep": [minutely]}))
    monkeypatch.setattr(deployments_module, "SCHEDULES", file)
    address = f"{platform.prefect}/api"
    login = {"headers": platform.login}
    monkeypatch.setattr(
        register, "get_client", lambda **_: SyncPrefectClient(address, httpx_settings=login)
    )
    register.main()
    first = until(lambda: runs_of(platform, "sweep", "RUNNING", "COMPLETED"), RUN_SECONDS)[0]
    with SyncPrefectClient(address, httpx_settings=login) as client:
        one = client.read_deployment_by_name("sweep/sweep")
        (schedule,) = one.schedules
        assert schedule.slug == "minutely"
        client.delete_deployment_schedule(one.id, schedule.id)
    assert ended(platform, first["id"]) == "Completed"
    assert first["work_pool_name"] == "cpu"
    trials = runs_of(platform, "trial", "COMPLETED")
    assert {trial["work_pool_name"] for trial in trials} == {"training"}
    assert sorted(trial["name"] for trial in trials) == [
        "clock 0: beta = 0.1",
        "clock 1: beta = 1.0",
    ]


def runs_of(platform: Platform, deployment: str, *states: str) -> list[dict[str, Any]]:
    """A deployment's runs that are in one of the states."""
    found: list[dict[str, Any]] = api(
        platform,
        "flow_runs/filter",
        deployments={"name": {"any_": [deployment]}},
        flow_runs={"state": {"type": {"any_": list(states)}}},
    )
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_command_is_the_end_of_all_it_started(tmp_path: Path, number: int) -> None:
    lab = Lab(tmp_path)
    with platform_of(lab) as platform:
        run = start(platform, "train/preference", study_text=SMALL.read_text())
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
