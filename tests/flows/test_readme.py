"""What the README says can be done can be: its commands are taken, its files exist.

Its Python runs in `tests/library`.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from flows.audit import named_on_command_line
from flows.cli import app, built_in, one_file
from flows.deployments import deployments
from flows.form import STUDIES
from flows.parameters import load_parameters
from tests.flows.lab import ROOT

README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^    \.venv/bin/dynolab (.+)$", README, re.MULTILINE)
PAGES = dict(re.findall(r"^\| `(\w+)` \|[^|]+\| (?:`([\w.-]+)` )?\|[^|]*\|$", README, re.MULTILINE))
CLI: Any = get_command(app)
FLOWS = deployments()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_taken_as_it_stands(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("DYNOLAB_TEST_DATA", str(tmp_path))
    name, *arguments = shlex.split(command, comments=True)
    given = CLI.commands[name].make_context(name, arguments).params
    file = one_file(given.get("file"), given.get("config"))
    if name not in FLOWS or "my_" in str(file):
        return
    changes = [*(given["changes"] or [])]
    if name == "audit":
        changes += named_on_command_line(given["model"], given["data"], given["trained"])
    elif file is None:
        file = built_in(name)
    load_parameters(FLOWS[name].flow.parameters, file, changes)


def test_every_command_stands_in_the_table_with_its_page() -> None:
    assert PAGES.keys() == CLI.commands.keys()
    for name, page in PAGES.items():
        if page:
            one = FLOWS[name]
            known: Any = load_parameters(one.flow.parameters, STUDIES / one.first_file)
            assert Path(page).stem == known.name


@pytest.mark.parametrize("file", sorted(path.name for path in STUDIES.glob("*.yaml")))
def test_every_study_file_is_named_and_holds_settings_of_its_flow(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNOLAB_TEST_DATA", str(tmp_path))
    flow = file.removesuffix(".yaml").split("_")[0]
    load_parameters(FLOWS.get(flow, FLOWS["study"]).flow.parameters, STUDIES / file)
    assert f"`{file}`" in README or file == f"{flow}_builtin.yaml"
