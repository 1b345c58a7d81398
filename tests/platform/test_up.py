"""The platform as one command: a run from its form, and an end that leaves nothing."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest
import requests

from tests.flows.history import histories
from tests.flows.lab import SMALL, Lab, until
from tests.platform.conftest import Platform, platform_of
from tests.platform.served import RUN_SECONDS

pytestmark = [pytest.mark.services, pytest.mark.study]


def test_a_run_from_its_form_and_a_form_that_cannot_work(platform: Platform) -> None:
    text = SMALL.read_text()
    good = platform.start("train/sft", study_text=text, name="from a form", steps=4)
    assert platform.end(good) == "Completed"
    stages = platform.lab.home / "store" / "stages"
    made = {path.parent.parent.name for path in stages.glob("*/*/COMMITTED")}
    assert made == {"data", "base", "sft"}
    deployment = platform.api("GET", "deployments/name/train/preference")
    assert deployment["status"] == "READY"
    wrong = {"settings": {"study_file": "builtin.yaml", "objective": "ipo", "margin": 1.0}}
    answer = requests.post(
        f"{platform.prefect}/deployments/{deployment['id']}/create_flow_run",
        json={"parameters": wrong},
        headers=platform.login,
        timeout=30,
    )
    assert answer.status_code == 409 and "preference.objective.margin = 1.0" in answer.text


def test_a_run_that_is_paused_killed_and_retried_is_one_in_mlflow(platform: Platform) -> None:
    user = f":{platform.link('Prefect').partition('?token=')[2]}@"
    mlflow = platform.mlflow.replace("//", f"//{user}")

    def statuses(name: str = "killed") -> list[str]:
        return [history.status for history in histories(mlflow, "dynolab", name)]

    run = platform.start("train/preference", study_text=SMALL.read_text(), name="killed")
    until(lambda: statuses() == ["RUNNING"], RUN_SECONDS)
    platform.set_state(run, "PAUSED", "Suspended", pause_reschedule=True)
    until(lambda: statuses() == ["SCHEDULED"], RUN_SECONDS)
    platform.api("POST", f"flow_runs/{run}/resume")
    rank = psutil.Process(platform.lab.pause_preference())
    engine = next(
        parent for parent in rank.parents() if "flow_run_process" in " ".join(parent.cmdline())
    )
    engine.kill()
    assert platform.end(run) == "Crashed"
    until(lambda: "RUNNING" not in statuses(""), 30)
    assert statuses() == ["KILLED"], "though nobody retries"
    platform.set_state(run, "SCHEDULED", "AwaitingRetry")
    until(lambda: platform.state(run)["type"] == "RUNNING", RUN_SECONDS)
    assert platform.end(run) == "Completed"
    (history,) = histories(mlflow, "dynolab", "killed")
    assert history.status == "FINISHED" and "train/loss" in history.values


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_command_is_the_end_of_all_it_started(tmp_path: Path, number: int) -> None:
    lab = Lab(tmp_path)
    with platform_of(lab) as platform:
        run = platform.start("train/preference", study_text=SMALL.read_text())
        until(lambda: list(lab.home.glob("scratch/*")), RUN_SECONDS)
        assert len(lab.processes()) > 4
        began = time.monotonic()
        code = platform.stop(number)
        assert code == (-number if number == signal.SIGKILL else 0)
    until(lambda: not lab.processes(), 30)
    assert time.monotonic() - began < 60
    assert not (lab.home / "services.json").exists() or number == signal.SIGKILL
    if number == signal.SIGKILL:
        with platform_of(lab) as again:
            assert again.state(run)["name"] == "Crashed", "nobody works on it any more"
