"""What the wing brings is where people look for it."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

from experiments.wing import CHAPTERS, FLOWS
from flows.cli import app
from flows.deployment import deployments
from flows.registry import LISTED, REGISTRY, WINGS


def test_the_platform_finds_the_wing() -> None:
    assert [wing.__package__ for wing in WINGS] == ["experiments"]
    assert FLOWS.items() <= REGISTRY.items()


def test_its_flows_are_commands_and_chapters_by_both_their_names() -> None:
    command_line: Any = get_command(app)
    assert command_line.commands.keys() >= FLOWS.keys()
    assert list(command_line.commands["chapter"].commands) == list(CHAPTERS)
    assert all(command_line.commands[name].hidden for name in CHAPTERS)


@pytest.mark.parametrize("name", CHAPTERS)
def test_prefect_lists_chapters_last(name: str) -> None:
    assert LISTED[name] == f"~chapter-{name}"
    assert deployments.study_files(name)[0] == f"{name}_builtin.yaml"
