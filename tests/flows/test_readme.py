"""What README and manual say can be done can be: commands are taken, settings and files exist.

README's commands and files run in `test_readme_runs.py`, all Python in `tests/library`.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from dynolab.errors import ConfigError
from flows.audit import named_on_command_line
from flows.cli import app, built_in, one_file
from flows.deployment.deployments import built_in_flow, deployments
from flows.parameters.parse import STUDIES, load_parameters, parse_parameters
from tasks.runtime.track.runs import shown_params
from tests.flows.lab import ROOT

README = ROOT / "README.md"
MANUAL = ROOT / "docs"
MADE = ("_build", "wings")
PAGES = [page for page in sorted(MANUAL.rglob("*.md")) if not {*MADE} & {*page.parts}]
OF_WINGS = sorted(ROOT.glob("*/docs/*.md"))
TEXT = "\n\n".join(page.read_text() for page in (README, *PAGES, *OF_WINGS))
COMMANDS = re.findall(r"^(?:    |```sh\n)?((?:dynolab|make|pip|export) .+)$", TEXT, re.MULTILINE)
SETTINGS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
MODULES = sorted(set(re.findall(r"`python -m ([a-z_.]+)`", TEXT)))
TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
REPORTS = dict(
    re.findall(r"^\| `([\w ]+)` \|[^|]+\| (?:`([\w.-]+)` )?\|[^|]*\|$", TEXT, re.MULTILINE)
)
CLI: Any = get_command(app)
FLOWS = deployments()


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 160


@pytest.mark.parametrize("line", dict.fromkeys(COMMANDS))
def test_a_command_is_taken_as_it_stands(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("DYNOLAB_TEST_DATA", str(tmp_path))
    program, name, *arguments = shlex.split(line, comments=True)
    if program != "dynolab":
        assert program != "make" or name in TARGETS
        return
    given = CLI.commands[name].make_context(name, arguments).params
    file = one_file(given.get("file"), given.get("config"))
    if name not in FLOWS or (file is not None and file.name.startswith("my_")):
        return
    changes = [*(given["changes"] or [])]
    if name == "audit":
        data = tmp_path / given["data"].name
        data.write_text(json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}))
        changes += named_on_command_line(given["model"], data, given["trained"])
    elif file is None:
        file = built_in(name)
    load_parameters(FLOWS[name].flow.parameters, file, changes)


@pytest.mark.parametrize("text", SETTINGS)
def test_settings_are_those_of_a_flow(text: str) -> None:
    """As they stand; parts of a file are parts of a study's."""
    kinds = dict.fromkeys(one.flow.parameters for one in FLOWS.values())
    errors = []
    for kind in kinds:
        if yaml.safe_load(text).keys() <= kind.model_fields.keys():
            try:
                parse_parameters(kind, text, "manual")
            except ConfigError as error:
                errors.append(str(error))
            else:
                return
    raise AssertionError(errors or "no flow has these settings")


@pytest.mark.parametrize("module", MODULES)
def test_a_module_that_can_be_run_is_there(module: str) -> None:
    assert importlib.util.find_spec(module)


def test_every_command_stands_in_the_table_with_its_page() -> None:
    shown = {name for name, command in CLI.commands.items() if not command.hidden}
    assert {name.partition(" ")[0] for name in REPORTS} == shown
    for name, page in REPORTS.items():
        if page:
            one = FLOWS[name.removeprefix("chapter ")]
            known: Any = load_parameters(one.flow.parameters, STUDIES / one.first_file)
            assert Path(page).stem == known.name


FLOW_OF = {path.name: built_in_flow(path) for path in sorted(STUDIES.glob("*.yaml"))}
"""Study file → its flow, if that is here: a flow of a wing may be absent."""


@pytest.mark.parametrize("file", [file for file, flow in FLOW_OF.items() if flow])
def test_every_study_file_is_named_and_holds_settings_of_its_flow(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNOLAB_TEST_DATA", str(tmp_path))
    monkeypatch.setenv("DYNOLAB_MODULES", "stories")
    monkeypatch.syspath_prepend(STUDIES)
    flow = FLOW_OF[file]
    known = load_parameters(FLOWS[flow].flow.parameters, STUDIES / file)
    assert len(shown_params(known)) <= 40 and (
        f"`{file}`" in TEXT or file == f"{flow}_builtin.yaml"
    )


@pytest.mark.parametrize(
    "page", [README, *PAGES, *OF_WINGS], ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_lead_to_files(page: Path) -> None:
    """Links on GitHub, too, where no build checks them."""
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    made = [link for link in links if "_build/generated" in link or link.startswith("settings.md")]
    assert [link for link in links if link not in made and not (page.parent / link).exists()] == []


def test_every_page_is_in_the_contents() -> None:
    listed = set(re.findall(r"^[\w/-]+$", (MANUAL / "index.md").read_text(), re.MULTILINE))
    assert listed == {str(page.relative_to(MANUAL))[:-3] for page in PAGES} - {"index"}


def test_the_numbers_of_three_tokens_are_those_of_a_softmax() -> None:
    """The table, by autograd in float64."""
    import torch

    text = (MANUAL / "explain" / "forces.md").read_text().replace("−", "-")
    rows = re.findall(r"^\| [abc] \|(.*)\|$", text, re.MULTILINE)
    table = torch.tensor([[float(cell) for cell in row.split("|")] for row in rows]).double()
    losses = {1: lambda z: -z[1], 3: lambda z: z[2], 5: lambda z: z[2] - z[1]}
    for column, loss in losses.items():
        logits = table[:, 0].log().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(logits.log_softmax(0)), logits)
        _, change = torch.func.jvp(lambda z: z.log_softmax(0), (logits.detach(),), (-gradient,))
        if column < 5:
            torch.testing.assert_close(table[:, column], gradient, atol=0.005, rtol=0)
            torch.testing.assert_close(table[:, column + 1], change, atol=0.005, rtol=0)
        else:
            torch.testing.assert_close(table[:, column], change, atol=0.005, rtol=0)
