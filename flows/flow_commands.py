"""The commands that run, plan or show a flow. They import a flow only when they run."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from dynolab.errors import ConfigError
from flows.command_options import (
    Config,
    File,
    Fresh,
    Json,
    MachineName,
    Overrides,
    Plan,
    Show,
)
from flows.registry import load_flow


def flow_command(name: str) -> Callable[..., None]:
    """The command of a flow of the registry."""

    def run(
        file: File = None,
        config: Config = None,
        changes: Overrides = None,
        plan: Plan = False,
        machine: MachineName = None,
        show: Show = False,
        fresh: Fresh = False,
        as_json: Json = False,
    ) -> None:
        from flows.command_bodies import start, wanted_of
        from flows.flow import StagedFlow

        flow = load_flow(name)
        assert isinstance(flow, StagedFlow), "the sweep has its own command"
        given = one_file(file, config) or built_in(name)
        wanted = wanted_of(plan, machine, show=show, fresh=fresh, json=as_json)
        start(flow, given, changes or [], wanted)

    return run


def audit(
    file: File = None,
    config: Config = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Folder or Hub name of the model that preference training will start from."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Pairs (prompt, chosen, rejected), chat messages or HH transcripts."),
    ] = None,
    trained: Annotated[
        str | None,
        typer.Option(
            help="Folder or Hub name of the trained model, to compare the rankings with its effect."
        ),
    ] = None,
    changes: Overrides = None,
    plan: Plan = False,
    machine: MachineName = None,
    show: Show = False,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Rank preference pairs, before training, by the effect of one step on each."""
    from flows.audit import FLOW, named_on_command_line
    from flows.command_bodies import start, wanted_of

    named = named_on_command_line(model, data, trained)
    given = one_file(file, config) or (None if named else built_in("audit"))
    wanted = wanted_of(plan, machine, show=show, fresh=fresh, json=as_json)
    start(FLOW, given, [*named, *(changes or [])], wanted)
    if model is not None and data is not None and not (plan or show or as_json):
        from tasks.runtime.system.invocation import invocation

        arguments = shlex.join(["--model", model, "--data", str(data)])
        typer.echo(f"next    {invocation()} init my_study.yaml {arguments}")


def sweep(
    file: File = None,
    config: Config = None,
    changes: Overrides = None,
    plan: Plan = False,
    show: Show = False,
    as_json: Json = False,
) -> None:
    """Try settings of another flow: a grid, random draws or Optuna's TPE; resumes when rerun."""
    from flows.command_bodies import Wanted, start_sweep

    wanted = Wanted(plan=plan, show=show, json=as_json)
    start_sweep(one_file(file, config) or built_in("sweep"), changes or [], wanted)


def one_file(file: Path | None, config: Path | None) -> Path | None:
    """The file that the command line names. **Raises** `ConfigError` if it names two."""
    if file is not None and config is not None:
        raise ConfigError("--config", str(config), f"{file} is given, too; give one file")
    return file or config


def built_in(name: str) -> Path:
    """The name of a command's built-in study file."""
    others = {"study": "builtin.yaml", "sweep": "sweep_beta.yaml"}
    return Path(others.get(name, f"{name}_builtin.yaml"))
