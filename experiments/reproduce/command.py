"""The command `dynolab reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dynolab.errors import ConfigError
from flows.options import (
    Config,
    File,
    Fresh,
    Json,
    MachineName,
    Overrides,
    Plan,
    Show,
    Stages,
    flow_command,
    one_file,
)


def reproduce(
    file: File = None,
    stages: Stages = None,
    config: Config = None,
    logs: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Train nothing: read runs that others logged; FILE names them, by default those "
            "of the papers' authors.",
        ),
    ] = None,
    changes: Overrides = None,
    plan: Plan = False,
    machine: MachineName = None,
    show: Show = False,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Show which of the papers' findings appear, in trainings of its own or in logs of others."""
    if logs is None:
        run = flow_command("reproduce")
        run(file, stages, config, changes, plan, machine, show, fresh, as_json)
        return
    if plan or machine or show or fresh or stages or as_json:
        raise ConfigError(
            "--logs", str(logs), "trains nothing; of the options only --set goes with it"
        )
    from experiments.reproduce.logged import start_logs

    start_logs(logs, one_file(file, config), changes or [], typer.echo)
