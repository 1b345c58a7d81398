"""The command `dynolab`: runs or plans a flow, starts servers, and more.

The modules that do the work are imported when a command runs, so that the help appears at once.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dynolab import __version__
from dynolab.errors import ConfigError, DynolabError, under_option
from flows.entry import COMPARE, RESULTS, START
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
    built_in,
    file_and_stages,
    flow_command,
    one_file,
)
from flows.registry import REGISTRY, WINGS
from tasks.runtime.system.computing import COMPUTING
from tasks.runtime.system.invocation import invocation


class _HelpIsASwitch:
    """The option --help, which the help would else ask a value of."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.metavar = ""
        return option


class _Command(_HelpIsASwitch, typer.core.TyperCommand):
    pass


class _Group(_HelpIsASwitch, typer.core.TyperGroup):
    pass


app = typer.Typer(
    cls=_Group,
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

PACKAGES = ("dynolab", "models", "tasks", "flows", *(wing.__package__ for wing in WINGS))
WARNINGS = logging.lastResort or logging.StreamHandler()
"""Shows warnings of Dynolab's own on whatever is standard error by then."""

INTERRUPTED = 130  # exit code after Ctrl-C and SIGTERM
MOST_PORT = 65_535


def _version(shown: bool) -> None:
    if shown:
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


for _name, _entry in REGISTRY.items():
    if _entry.group:
        app.command(_name, help=_entry.about, rich_help_panel=_entry.group)(flow_command(_name))


@app.command(rich_help_panel=START)
def audit(
    file: File = None,
    stages: Stages = None,
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
    ranking: Annotated[
        Path | None,
        typer.Option(
            help="Scores from elsewhere (id, score), to compare with the rankings; JSON lines or "
            "Parquet."
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
    from flows.commands import Wanted, start

    with under_option(model=model, data=data, trained=trained, ranking=ranking):
        named = named_on_command_line(model, data, trained, ranking)
        study_file, again = file_and_stages(file, config, stages, fresh=fresh)
        study_file = study_file or (None if named else built_in("audit"))
        choices = Wanted(plan=plan, machine=machine, show=show, fresh=again, json=as_json)
        start(FLOW, study_file, [*named, *(changes or [])], choices)
    if model is not None and data is not None and not (plan or show or as_json):
        arguments = shlex.join(["--model", model, "--data", str(data)])
        typer.echo(f"next    {invocation()} init my_study.yaml {arguments}")


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

    program = invocation()
    with under_option(model=model, data=data):
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
    port: Annotated[
        int, typer.Option(min=0, max=MOST_PORT, help="Port of the page; 0: any free one.")
    ] = 8050,
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


@app.command(rich_help_panel=COMPARE)
def sweep(
    file: File = None,
    config: Config = None,
    changes: Overrides = None,
    plan: Plan = False,
    show: Show = False,
    as_json: Json = False,
) -> None:
    """Try settings of another flow: a grid, random draws or Optuna's TPE; resumes when rerun.

    The file's `space` has the values, or --set 'space={preference.objective.beta: [0.1, 0.5]}';
    a range is {low: 0.01, high: 2, log: true}, and ten values are drawn from it.
    """
    from flows.commands import Wanted, start_sweep

    choices = Wanted(plan=plan, show=show, json=as_json)
    start_sweep(one_file(file, config) or built_in("sweep"), changes or [], choices)


@app.command(rich_help_panel=RESULTS)
def path(
    address: Annotated[
        str,
        typer.Argument(help="<stage>/<key> with the key's first digits, or store.address."),
    ],
    as_json: Json = False,
) -> None:
    """Print the folder that holds a result's files, such as `dynolab path preference/f8f6`."""
    from flows.flow import existing_result
    from tasks.runtime.open_platform import open_store
    from tasks.runtime.system.settings import Settings

    store = open_store(Settings.from_environment())
    result = existing_result(store, "address", address)
    folder = store.folder(result.address, result.digest)
    typer.echo(folder)
    if as_json:
        typer.echo(json.dumps({"path": str(folder)}))


@app.command(rich_help_panel=RESULTS)
def push(
    result: Annotated[
        str,
        typer.Argument(
            metavar="RESULT",
            help="A study's report/<key>, or a training's; default: the newest study.",
        ),
    ] = "report",
    hub: Annotated[
        str | None, typer.Option(metavar="NAME", help="Repository of the Hub, as me/my-model.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="New folder; without --hub only this.")
    ] = None,
    public: Annotated[
        bool,
        typer.Option(
            "--public",
            metavar="",
            help="Let everybody read it: a new repository, or an existing public one.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", metavar="", help="Publish what is shown without asking.")
    ] = False,
) -> None:
    """Write a result's model and a card of what its training did, and push them to the Hub.

    Card and settings are shown before they are published.
    """
    from flows.push import push as push_model

    if hub is not None and not yes and not sys.stdin.isatty():
        raise ConfigError("--hub", hub, "shows what it publishes and asks; add --yes to publish")
    push_model(
        result, hub, to, typer.echo, public=public, agreed=lambda text: yes or typer.confirm(text)
    )


@app.command(rich_help_panel=RESULTS)
def schedule(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="Settings (YAML) to schedule, or the name of a built-in study, with --cron.",
        ),
    ] = None,
    config: Config = None,
    cron: Annotated[
        str | None,
        typer.Option(
            help="Run FILE at these times: minute, hour, day, month and weekday, such as "
            "'0 3 * * *', in this machine's time zone."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the new schedule; default: the study's name.")
    ] = None,
    changes: Overrides = None,
    pause: Annotated[str | None, typer.Option(metavar="NAME", help="Pause a schedule.")] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="NAME", help="Switch on a paused schedule.")
    ] = None,
    remove: Annotated[str | None, typer.Option(metavar="NAME", help="Remove a schedule.")] = None,
    as_json: Json = False,
) -> None:
    """Run a study file by the clock on the running platform; without FILE, list schedules.

    For example: dynolab schedule my_sweep.yaml --cron '0 3 * * *' --name nightly
    """
    from flows.up import use_platform

    use_platform()
    from flows.schedule import change_schedules

    new = one_file(file, config), cron, name, changes or []
    rows = change_schedules(new, {True: resume, False: pause, None: remove})
    table = Table(*(rows[0] if rows else ["no schedules"]), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)
    if as_json:
        typer.echo(json.dumps({"schedules": rows}))


@app.command(rich_help_panel=RESULTS)
def verify(
    results: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RESULT…", help="Stages, or <stage>/<key> with first digits; default: all."
        ),
    ] = None,
    remove: Annotated[
        bool,
        typer.Option(
            "--remove", metavar="", help="Remove what is damaged, so that it is computed again."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Read results and resume states, and say which are no longer as they were committed."""
    from flows.commands import print_json
    from flows.verify import verify_store

    report = verify_store(results or [], typer.echo, removes=remove)
    if as_json:
        print_json(**report)
    if not all(damage["removed"] for damage in report["damaged"]):
        raise typer.Exit(1)


@app.command(rich_help_panel=RESULTS)
def reconcile(as_json: Json = False) -> None:
    """Send what waits for MLflow, and kill this host's orphaned processes."""
    from flows.commands import RECONCILED, print_json, start_reconcile

    counts = start_reconcile()
    for name, count in counts.items():
        typer.echo(f"{count:5d}  {RECONCILED[name]}")
    if as_json:
        print_json(**counts)


@app.command(rich_help_panel=RESULTS)
def up(
    prefect_port: Annotated[
        int, typer.Option(min=0, max=MOST_PORT, help="Port of the Prefect server.")
    ] = 4200,
    mlflow_port: Annotated[
        int, typer.Option(min=0, max=MOST_PORT, help="Port of the MLflow server.")
    ] = 5000,
    notify: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="DYNOLAB_NOTIFY",
            help="Tell of runs that end, fail or wait: a webhook, Slack's too, or an address of "
            "Apprise, such as mailtos://user:password@example.com.",
        ),
    ] = None,
) -> None:
    """Start the servers on this home's runs, with deployments and workers; Ctrl-C ends them.

    The printed links log a browser in for 30 days.
    """
    from flows.up import start
    from tasks.runtime.system.settings import Settings

    start(
        Settings.from_environment().home,
        typer.echo,
        prefect_port=prefect_port,
        mlflow_port=mlflow_port,
        notify=notify,
    )


for _wing in WINGS:
    _wing.add_commands(app)
for _command in app.registered_commands:
    _command.cls = _Command


def main() -> None:
    """Entry point: prints a DynolabError as one message and exits with code 2."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from tasks.runtime.launch.notice import sigterm_as_interrupt

    for name in PACKAGES:
        # Prefect's console, set above, would hide them.
        logging.getLogger(name).addHandler(WARNINGS)
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
