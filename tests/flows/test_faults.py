"""What is committed is not computed again, and a study that is killed loses and leaves nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from tasks.runtime.servers.service import MLFLOW, PREFECT
from tasks.runtime.servers.services import start_services
from tasks.runtime.system.secret_files import own_folder
from tests.faults.records import Record, tell
from tests.flows.conftest import Command
from tests.flows.history import finished_history, histories, lost
from tests.flows.lab import SMALL, Lab, address_with_login, complaints, ended, until

pytestmark = [pytest.mark.ranks, pytest.mark.services]

BETA = "preference.objective.beta=0.2"
ON_BETA = {
    "audit",
    "preference",
    "foresight",
    "probe",
    "preference-forces",
    "kernel",
    "squeezing",
    "report",
}


@pytest.mark.real_path
def test_a_second_command_computes_nothing_and_needs_no_mlflow(finished: Lab) -> None:
    assert set(finished.alone().study("project=undisturbed").values()) == {"cached"}
    assert not (finished.home / "mlflow").exists()
    assert not list(finished.home.glob("outbox/*"))
    assert (finished.home / "reports" / "small.html").exists()
    assert finished.left_behind() == []


def test_the_plan_names_what_a_change_computes_anew(finished: Lab, command: Command) -> None:
    planned = command("study", "--config", str(SMALL), "--plan", "--set", BETA, "--json").out
    stages = json.loads(planned.splitlines()[-1])["stages"]
    states = {stage["step"]: stage["state"] for stage in stages}
    assert {step for step, state in states.items() if state == "to run"} == ON_BETA
    assert states.keys() - ON_BETA == {"data", "base", "sft", "sft-forces"}


def goes_on_as_if_undisturbed(lab: Lab, undisturbed: Lab, project: str) -> bool:
    """Started again the study resumes; whether it ends as the undisturbed one."""
    again = lab.study(f"project={project}")
    early = {"data", "base", "sft", "audit", "sft-forces"}
    assert {name for name, state in again.items() if state == "cached"} == early
    assert lab.manifest("preference")["metrics"]["resumed_from"] >= 3
    return all(lab.hashes(name) == undisturbed.hashes(name) for name in ("preference", "probe"))


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_ends_in_order(
    number: signal.Signals, lab: Lab, undisturbed: Lab, record_property: Record
) -> None:
    project = number.name
    command = lab.start(f"project={project}")
    lab.pause_preference()
    command.send_signal(number)
    assert "cancelled; run the same command again" in complaints(command, 130)
    assert lab.left_behind() == []
    uri = lab.mlflow
    killed, study = (histories(uri, project, name)[0] for name in ("preference", "small"))
    assert killed.status == study.status == "KILLED"
    identical = goes_on_as_if_undisturbed(lab, undisturbed, project)
    history = finished_history(uri, project)
    assert history.run_id == killed.run_id
    tell(
        record_property,
        f"a command with a hung rank gets {number.name}",
        left=lab.left_behind(),
        metrics_lost=lost(history, undisturbed.history()),
        resume_identical=identical,
    )


@pytest.mark.faults
def test_a_killed_command_takes_all_with_it_and_the_next_takes_over(
    lab: Lab, undisturbed: Lab, record_property: Record
) -> None:
    command = lab.alone().start("project=command")
    lab.pause_preference()
    command.kill()
    ended(command)
    until(lambda: not lab.processes(), seconds=10)
    assert list(lab.home.glob("store/stages/preference/*/CLAIM"))
    identical = goes_on_as_if_undisturbed(lab, undisturbed, "command")
    with start_services(lab.home, [MLFLOW]) as services:
        services.wait_ready()
        uri = address_with_login(services.environment())
        history = finished_history(uri, "command")
        ends = [study.status for study in histories(uri, "command", "small")]
        assert sorted(ends) == ["FINISHED", "KILLED"]
    tell(
        record_property,
        "a command with its own servers is killed",
        left=lab.left_behind(),
        metrics_lost=lost(history, undisturbed.history()),
        resume_identical=identical,
    )


@pytest.mark.faults
@pytest.mark.parametrize("name", ["prefect", "mlflow"])
def test_a_server_of_the_command_is_killed_and_started_again(
    name: str, lab: Lab, undisturbed: Lab, record_property: Record
) -> None:
    command = lab.alone().start(f"project={name}")
    rank = lab.pause_preference()
    server = next(
        process
        for process in map(psutil.Process, lab.processes())
        if f"servers.serve {name} " in " ".join(process.cmdline())
    )
    server.kill()
    until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, 10)
    os.kill(rank, signal.SIGCONT)
    printed, errors = ended(command)
    assert command.returncode == 0, printed + errors
    assert f"{name} has ended and is started again" in errors
    assert "report  " in printed and json.loads(printed.splitlines()[-1])["stages"]
    tell(
        record_property,
        f"a command's own {name} is killed",
        left=lab.left_behind(),
        metrics_lost=None,
        resume_identical=lab.hashes("preference") == undisturbed.hashes("preference"),
    )


@pytest.mark.faults
def test_a_prefect_that_does_not_come_back_costs_no_summary(
    lab: Lab, undisturbed: Lab, record_property: Record, tmp_path: Path
) -> None:
    elsewhere = own_folder(tmp_path / "elsewhere")
    with start_services(elsewhere, [PREFECT]) as services:
        services.wait_ready()
        lab.environment |= services.environment() | {"PREFECT_CLIENT_MAX_RETRIES": "2"}
        command = lab.start("project=away")
        rank = lab.pause_preference()
        services.stop()
        os.kill(rank, signal.SIGCONT)
        printed, errors = ended(command)
    assert command.returncode == 0, printed + errors
    assert "Prefect did not come back" in printed
    assert "report  " in printed and json.loads(printed.splitlines()[-1])["stages"]
    assert "Prefect has failed" in complaints(lab.start("project=away"))
    tell(
        record_property,
        "Prefect is gone for good",
        left=lab.left_behind(),
        metrics_lost=None,
        resume_identical=lab.hashes("preference") == undisturbed.hashes("preference"),
    )


@pytest.mark.faults
def test_a_study_killed_anywhere_ends_as_the_undisturbed_one(
    tmp_path: Path, servers: dict[str, str], undisturbed: Lab, record_property: Record
) -> None:
    """SIGKILL, five times, for any of its processes at any moment, from an empty home on.

    Half of a small file of the store may stay under a name that nothing reads.
    """
    lab, seed = Lab(tmp_path, **servers), int.from_bytes(os.urandom(4))
    chance = random.Random(seed)
    for _ in range(5):
        command = lab.start("project=anywhere")
        time.sleep(chance.uniform(2, 12))
        os.kill(chance.choice(lab.processes()), signal.SIGKILL)
        ended(command)
        until(lambda: not lab.processes(), seconds=20)
    lab.study("project=anywhere")
    stages = ("data", "base", "sft", "preference", "probe")
    tell(
        record_property,
        f"five processes killed at random (seed {seed})",
        left=[path for path in lab.left_behind() if not path.endswith(".part")],
        metrics_lost=lost(finished_history(lab.mlflow, "anywhere"), undisturbed.history()),
        resume_identical=all(lab.hashes(name) == undisturbed.hashes(name) for name in stages),
    )
