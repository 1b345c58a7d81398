"""What a run refuses before it begins, and copies into the home's reports."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dynolab.errors import ConfigError
from flows.flow import Plan
from flows.parameters.parse import load_parameters
from flows.run import check_hosts, copy_page, write_early_page
from flows.study.flow import STUDY
from flows.study.parameters import StudyParameters
from flows.study.steps import study_steps
from tasks.runtime.system.settings import Settings
from tests.flows.lab import SMALL


def platform(folder: Path) -> Any:
    result = folder / "result"
    result.mkdir()
    return SimpleNamespace(
        settings=Settings.from_environment({"DYNOLAB_HOME": str(folder)}),
        store=SimpleNamespace(folder=lambda address, digest: result),
    )


def test_a_page_is_copied_with_what_its_reader_needs(tmp_path: Path) -> None:
    there = platform(tmp_path)
    reports, made = tmp_path / "reports", tmp_path / "result"
    (made / "report.html").write_text("whole")
    (made / "remedies.yaml").write_text("name: x")
    reports.mkdir()
    (reports / "mine-pairs.jsonl").write_text("of an older study")
    results: Any = {"report": SimpleNamespace(address="a", digest="d")}
    copy_page(STUDY, "mine", results, there)
    assert {file.name: file.read_text() for file in reports.iterdir()} == {
        "mine.html": "whole",
        "mine-remedies.yaml": "name: x",
    }


def test_an_early_page_replaces_the_last_and_never_ends_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    there, page = platform(tmp_path), tmp_path / "reports" / "small.html"
    contents = iter(["", "data", "data and base"])
    file = tmp_path / "reports" / "small-remedies.yaml"
    plan = Plan(
        load_parameters(StudyParameters, SMALL),
        [],
        early=lambda results, platform: next(contents),
        beside={"remedies.yaml": "arms"},
    )
    seen = []
    for _ in range(3):
        write_early_page(STUDY, plan, {}, there)
        seen.append(page.read_text() if page.exists() else None)
    assert seen == [None, "data", "data and base"] and file.read_text() == "arms"

    def failing(results: Any, platform: Any) -> str:
        raise ConfigError("results", None, "are not what a page is made of")

    with caplog.at_level(logging.WARNING):
        write_early_page(
            STUDY, Plan(load_parameters(StudyParameters, SMALL), [], early=failing), {}, there
        )
    assert "cannot write the page" in caplog.text
    assert page.read_text() == "data and base" and set(page.parent.iterdir()) == {page, file}


def settings(hosts: int) -> Settings:
    return Settings.from_environment(
        {"DYNOLAB_HOSTS": str(hosts), "DYNOLAB_RENDEZVOUS": "10.0.0.1:29400"}
    )


def test_a_training_that_hosts_cannot_share_is_named() -> None:
    steps = study_steps(load_parameters(StudyParameters, SMALL, []))
    check_hosts(steps, settings(1))
    check_hosts(steps, settings(2))
    with pytest.raises(
        ConfigError, match=r"preference\.engine\.ranks = 2: .*multiple of DYNOLAB_HOSTS = 3"
    ):
        check_hosts(steps, settings(3))


def test_more_ranks_than_gpus_are_refused_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = study_steps(load_parameters(StudyParameters, SMALL, []))
    monkeypatch.setenv("DYNOLAB_DEVICES", "0,1")
    check_hosts(steps, settings(1))
    monkeypatch.setenv("DYNOLAB_DEVICES", "0")
    with pytest.raises(
        ConfigError, match=r"preference\.engine\.ranks = 2: this host has 1 GPU \(0\)"
    ):
        check_hosts(steps, settings(1))
    check_hosts(study_steps(load_parameters(StudyParameters, Path("builtin.yaml"))), settings(1))
