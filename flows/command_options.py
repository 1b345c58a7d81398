"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.completion import studies

File = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        autocompletion=studies,
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
Fresh = Annotated[bool, typer.Option("--fresh", metavar="", help="Compute every stage again.")]
