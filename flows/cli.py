"""The command `dynolab`: runs or plans a flow, starts servers, and more."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from dynolab import __version__
from dynolab.errors import DynolabError
from flows.command_options import Json
from flows.flow_commands import audit, flow_command, sweep
from flows.registry import FLOWS
from flows.result_commands import join, lineage, path, reconcile, up
from tasks.runtime.system.computing import COMPUTING

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A dynamometer for fine-tuning: which example, token and part of the loss pushed what.",
)
errors = Console(stderr=True)

ENVIRONMENT = {
    # Prefect's log lines go to its server, ours to the terminal.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",  # MLflow does not accept "1" in DO_NOT_TRACK
    **COMPUTING,
}

INTERRUPTED = 130  # exit code after Ctrl-C and SIGTERM

START, FORCES, COMPARE, CHAPTERS, RESULTS = (
    "Start here",
    "Forces and answers",
    "Comparisons of trainings",
    "Chapters beyond finetuning",
    "Results and servers",
)
"""Groups of commands, in the order of the help."""

GROUPS = {
    "study": START,
    **dict.fromkeys(("forces", "ledger", "counterfactual", "judge", "probes"), FORCES),
    **dict.fromkeys(("mitigation", "reproduce", "grpo"), COMPARE),
    **dict.fromkeys(
        ("squeezing", "coupling", "simplicity", "classification", "supervision", "transfer"),
        CHAPTERS,
    ),
}
"""Flow → group of its command, for flows whose commands take the same options.

`train` has none: it starts only from Prefect.
"""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dynolab {__version__}")
        raise typer.Exit


@app.callback()
def dynolab(
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """Options of every command."""


def _add_flow(name: str) -> None:
    command = app.command(name, help=FLOWS[name], rich_help_panel=GROUPS[name])
    command(flow_command(name))


_add_flow("study")
app.command(rich_help_panel=START)(audit)


@app.command(rich_help_panel=START)
def init(
    model: Annotated[str, typer.Option(help="Folder or Hub name of a causal language model.")],
    data: Annotated[
        Path,
        typer.Option(help="Pairs (prompt, chosen, rejected), chat messages or HH transcripts."),
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")] = Path(
        "study.yaml"
    ),
    as_json: Json = False,
) -> None:
    """Write a study file for a model and pairs, with comments and what it will cost."""
    from flows.init import write_study
    from tasks.runtime.system.invocation import invocation

    program = invocation()
    written = write_study(file, model=model, data=data, program=program)
    typer.echo("\n".join(written.notes))
    typer.echo(f"{file} is written; run it with: {program} study {shlex.quote(str(file))}")
    if as_json:
        typer.echo(json.dumps({"file": str(file), **written.as_json()}, ensure_ascii=False))


@app.command(rich_help_panel=START)
def explore(
    results: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RESULT…",
            help="A study's result, report/<key> with the key's first digits; default: the newest. "
            "Trainings of further ones, on the same data, can be put beside its own.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the page; 0: any free one.")] = 8050,
) -> None:
    """Open a study's results in a browser: who pushed an answer, and what if it had not."""
    from flows.explore import NEWEST, start

    start(results or [NEWEST], port, typer.echo)


@app.command(rich_help_panel=START)
def doctor(as_json: Json = False) -> None:
    """Check this machine: libraries, GPUs, home, store, servers."""
    from flows.doctor import examine

    colors = {"ok": "green", "note": "yellow", "wrong": "red"}
    findings = []
    for finding in examine():
        findings.append(finding)
        line = f"[{colors[finding.state]}]{finding.state:6}[/] {finding.name:10}"
        Console().print(f"{line} {escape(finding.text)}", highlight=False, soft_wrap=True)
    if as_json:
        typer.echo(json.dumps({"findings": [vars(finding) for finding in findings]}))
    if any(finding.state == "wrong" for finding in findings):
        raise typer.Exit(1)


for _name in FLOWS:
    if _name in GROUPS and _name != "study":
        _add_flow(_name)
app.command(rich_help_panel=COMPARE)(sweep)
for _command in (lineage, path, reconcile, join, up):
    app.command(rich_help_panel=RESULTS)(_command)


def main() -> None:
    """Entry point: prints a DynolabError as one message and exits with code 2."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from tasks.runtime.servers.standing_servers import sigterm_as_interrupt

    try:
        with sigterm_as_interrupt():
            app()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            errors.print("cancelled; run the same command again to go on")
        raise
    except DynolabError as error:
        errors.print(f"[red]error[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        if "--json" in sys.argv:
            typer.echo(json.dumps({"error": str(error)}))
        sys.exit(2)


if __name__ == "__main__":
    main()
