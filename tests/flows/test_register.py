"""Schedules as they are written, and what is refused of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynolab.errors import ConfigError
from flows.deployments import PARAMETER, deployments
from flows.register import SCHEDULES, _schedule, read_schedules


def test_the_built_in_schedules_can_be_read(tmp_path: Path) -> None:
    assert read_schedules(SCHEDULES).keys() <= deployments().keys()
    assert read_schedules(tmp_path / "none.yaml") == {}


def test_a_schedule_runs_a_form_by_the_clock(tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text("sweep: [{name: nightly, cron: 0 3 * * *, settings: {trials: 3}}]\nstudy:\n")
    known = read_schedules(file)
    assert known["study"] == []
    made = _schedule(deployments()["sweep"], known["sweep"][0])
    assert made.slug == "nightly" and made.parameters is not None
    assert made.parameters[PARAMETER]["study_file"] == "sweep_beta.yaml"
    assert made.parameters[PARAMETER]["trials"] == 3


@pytest.mark.parametrize(
    ("written", "message"),
    [
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
        _schedule(deployments()["sweep"], read_schedules(file)["sweep"][0])
