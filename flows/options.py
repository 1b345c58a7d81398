"""The options that commands of flows take, and the command of a flow that takes no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from dynolab.errors import ConfigError
from flows.registry import load_flow

File = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="Settings (YAML), or the name of a built-in study; default: the built-in one.",
    ),
]
Config = Annotated[Path | None, typer.Option("--config", help="The same as FILE.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting, by its dotted name."),
]
# An empty metavar: a switch takes no value, and its help should not ask for one.
Plan = Annotated[
    bool,
    typer.Option(
        "--plan", metavar="", help="Only show what would run, with memory, bytes and hours."
    ),
]
MachineName = Annotated[
    str | None,
    typer.Option(
        "--machine",
        metavar="NAME",
        help="With --plan: a machine to plan for, such as h100x8; default: this one.",
    ),
]
Show = Annotated[
    bool, typer.Option("--show", metavar="", help="Only show the settings, defaults and all.")
]
Json = Annotated[
    bool, typer.Option("--json", metavar="", help="End with one line of JSON: what came out.")
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh", metavar="", help="Compute every stage again, or those that are named with it."
    ),
]
Stages = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="STAGE…",
        help="With --fresh: stages to compute again, such as --fresh report; what follows from "
        "them is computed again where it then differs.",
        show_default=False,
    ),
]


def flow_command(name: str) -> Callable[..., None]:
    """The command of a flow of the registry."""

    def run(
        file: File = None,
        stages: Stages = None,
        config: Config = None,
        changes: Overrides = None,
        plan: Plan = False,
        machine: MachineName = None,
        show: Show = False,
        fresh: Fresh = False,
        as_json: Json = False,
    ) -> None:
        from flows.commands import Wanted, start
        from flows.flow import StagedFlow

        flow = load_flow(name)
        assert isinstance(flow, StagedFlow), "the sweep has its own command"
        study_file, again = file_and_stages(file, config, stages, fresh=fresh)
        choices = Wanted(plan=plan, machine=machine, show=show, fresh=again, json=as_json)
        start(flow, study_file or built_in(name), changes or [], choices)

    return run


def one_file(file: Path | None, config: Path | None) -> Path | None:
    """The file that the command line names. **Raises** `ConfigError` if it names two."""
    if file is not None and config is not None:
        raise ConfigError("--config", str(config), f"{file} is given, too; give one file")
    return file or config


def file_and_stages(
    file: Path | None, config: Path | None, stages: list[str] | None, *, fresh: bool
) -> tuple[Path | None, bool | tuple[str, ...]]:
    """The study file that the command line names, and what it wants computed again.

    A word beside `--fresh` is a stage unless it names a study file. **Raises** `ConfigError` for
    two files, and for stages without `--fresh`.
    """
    from flows.parameters.parse import study_file

    words = [*([str(file)] if file else []), *(stages or [])]
    files = [word for word in words if "." in word or study_file(Path(word)).is_file()]
    named = [word for word in words if word not in files]
    if not fresh and words:
        files, named = words[:1], words[1:]
    if named and not fresh:
        raise ConfigError("STAGE", named[0], "is computed again with --fresh; add it")
    if len(files) > 1:
        raise ConfigError("FILE", files[1], f"{files[0]} is given, too; give one file")
    the_file = one_file(Path(files[0]) if files else None, config)
    return the_file, tuple(named) if named else fresh


def built_in(name: str) -> Path:
    """The name of a command's built-in study file."""
    others = {"study": "builtin.yaml", "sweep": "sweep_beta.yaml"}
    return Path(others.get(name, f"{name}_builtin.yaml"))
