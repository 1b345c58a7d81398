"""Schedules as they are written, and what is refused of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynolab.errors import ConfigError
from flows.deployments import PARAMETER, SCHEDULES, deployment_specs, deployments, read_schedules
from flows.register import FILE, prefect_yaml


def test_the_built_in_schedules_can_be_read(tmp_path: Path) -> None:
    known = deployments()
    assert read_schedules(SCHEDULES, known).keys() <= known.keys()
    assert read_schedules(tmp_path / "none.yaml", known) == {}


def test_the_file_for_prefects_own_command_is_current() -> None:
    assert FILE.read_text() == prefect_yaml(deployment_specs()), "run python -m flows.register yaml"


def test_a_schedule_runs_a_form_by_the_clock(tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text("sweep: [{name: nightly, cron: 0 3 * * *, settings: {trials: 3}}]\nstudy:\n")
    known = deployments()
    schedules = read_schedules(file, known)
    assert schedules["study"] == []
    made = schedules["sweep"][0].create(known["sweep"])
    assert made.slug == "nightly" and made.parameters is not None
    assert made.parameters[PARAMETER]["study_file"] == "sweep_beta.yaml"
    assert made.parameters[PARAMETER]["trials"] == 3


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("weep: []", "schedules = 'weep': name a deployment: study, "),
        ("[1]", "must hold settings by name"),
        ("sweep: {cron: 0 3 * * *}", "sweep = "),
        ("sweep: [{timezone: UTC}]", r"sweep.0.cron = .*Field required"),
        ("sweep: [{cron: 0 3 * * *, when: now}]", "sweep.0.when = 'now': there is no such"),
        ("sweep: [{cron: at three}]", "cron = 'at three': "),
        ("sweep: [{cron: 0 3 * * *, timezone: Moon}]", "timezone = 'Moon': "),
        ("sweep: [{cron: 0 3 * * *, settings: {trials: few}}]", "trials = 'few': "),
    ],
)
def test_what_is_no_schedule_is_named(written: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(written)
    with pytest.raises(ConfigError, match=message):
        read_schedules(file, known := deployments())["sweep"][0].create(known["sweep"])
