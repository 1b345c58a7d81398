"""The command line: its groups, files, settings and the line of JSON; nothing runs here."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml
from typer.main import get_command

import dynolab
from flows import cli
from flows.registry import FLOWS

Command = Callable[..., str]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Runs the command in this process, from a folder that is no checkout; gives what it prints."""
    monkeypatch.setenv("DYNOLAB_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["dynolab", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        printed, complained = capsys.readouterr()
        assert (end.value.code or 0) == code, complained
        return printed

    with patch.dict(os.environ):  # the command sets variables
        yield run


def test_every_command_is_in_a_group() -> None:
    commands = get_command(cli.app).commands  # type: ignore[attr-defined]
    assert {name for name in FLOWS if name != "train"} <= commands.keys()
    assert all(command.rich_help_panel or command.hidden for command in commands.values())


def test_the_version(command: Command) -> None:
    assert command("--version") == f"dynolab {dynolab.__version__}\n"


@pytest.mark.parametrize("file", [["mine.yaml"], ["--config", "mine.yaml"]])
def test_settings_are_shown_with_their_defaults(
    file: list[str], command: Command, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    shown = yaml.safe_load(command("study", *file, "--set", "sft.steps=7", "--show"))
    assert (shown["name"], shown["sft"]["steps"], shown["preference"]["steps"]) == ("mine", 7, 60)


def test_two_files_are_refused_with_a_line_of_json(command: Command) -> None:
    printed = command("study", "a.yaml", "--config", "b.yaml", "--json", code=2)
    assert json.loads(printed)["error"].startswith("--config = 'b.yaml': a.yaml is given, too")


def test_the_plan_of_the_built_in_study_from_any_folder(command: Command) -> None:
    stages = json.loads(command("study", "--plan", "--json").splitlines()[-1])["stages"]
    assert stages[0]["step"] == "data" and stages[0]["state"] == "to run"
    assert {**stages[-1], "cost": None} == {
        "step": "report",
        "state": "to run",
        "key": None,
        "cost": None,
    }


def test_the_plan_of_a_sweep_lists_its_trials(command: Command) -> None:
    trials = json.loads(command("sweep", "--plan", "--json").splitlines()[-1])["trials"]
    assert len(trials) == 8
    assert trials[0]["settings"] == {"preference.objective.beta": 0.01}
    assert trials[0]["to_run"] == ["data", "base", "sft", "preference"]
    assert "3 trials, drawn by random" in command(
        "sweep", "--plan", "--set", "sampler=random", "--set", "trials=3"
    )


def test_the_doctor_ends_with_a_line_of_json(command: Command) -> None:
    *lines, last = command("doctor", "--json").splitlines()
    findings = json.loads(last)["findings"]
    assert [finding["name"] for finding in findings] == [line.split()[1] for line in lines]


def test_a_plan_says_what_stages_take(command: Command) -> None:
    printed = command("study", "--plan", "--machine", "h100x8", "--json")
    assert "h100x8 (8 x 75.2 GB, 2048.0 GB of main memory" in printed
    stages = {each["step"]: each for each in json.loads(printed.splitlines()[-1])["stages"]}
    cost = stages["preference"]["cost"]
    assert cost["ranks"] == 2
    assert cost["rank_bytes"] > 4 * cost["parameters"]
    assert cost["hours"] > 0 and cost["written"] > 4 * cost["parameters"]
    assert stages["foresight"]["cost"] is None


def test_a_plan_refuses_what_does_not_fit(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no network")

    for query in ("model_info", "dataset_info"):
        monkeypatch.setattr(f"huggingface_hub.HfApi.{query}", unreachable)
    planned = ("study", "hh_pythia2.8b.yaml", "--plan", "--json", "--machine", "a100")
    printed = command(*planned, code=2)
    assert "too large" in printed
    error = json.loads(printed.splitlines()[-1])["error"]
    assert error.startswith("sft = ")
    assert "runs 8 ranks, and a100 has 1 GPU; set sft.engine.ranks=1" in error


@pytest.mark.parametrize("arguments", [["--machine", "h100"], ["--plan", "--machine", "mine"]])
def test_a_machine_is_for_plans_and_has_a_name(command: Command, arguments: list[str]) -> None:
    assert "--machine" in json.loads(command("study", *arguments, "--json", code=2))["error"]
