"""What is committed is not computed again, and what changed is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.flows.lab import ROOT, SMALL, Lab

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


def test_the_plan_names_what_a_change_computes_anew(finished: Lab) -> None:
    command = [sys.executable, "-m", "flows.cli", "study", "--config", str(SMALL), "--plan"]
    planned = subprocess.run(
        [*command, "--set", BETA],
        cwd=ROOT,
        env=finished.environment,
        check=True,
        capture_output=True,
        text=True,
    )
    lines = [line.replace("│", " ").split() for line in planned.stdout.splitlines()]
    assert {line[0] for line in lines if line[1:3] == ["to", "run"]} == ON_BETA
    assert {line[0] for line in lines if line[1:2] == ["cached"]} == {
        "data",
        "base",
        "sft",
        "sft-forces",
    }
