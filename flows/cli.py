"""The command `dynolab`: runs or plans a flow, starts servers, and more."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from dynolab.errors import DynolabError
from flows.registry import FLOWS, load_flow
from tasks.runtime.system.computing import COMPUTING

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
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

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting, e.g. sft.steps=20."),
]


Plan = Annotated[bool, typer.Option("--plan", help="Only show what would run.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Compute every stage again.")]
EXAMPLES = Path("deploy/studies")

_NO_STANDARD_COMMAND = ("audit", "sweep", "train")
"""`audit` and `sweep` have their own commands below; `train` starts only from Prefect."""


def _add(name: str, about: str) -> None:
    """Add a command for a flow of the registry."""

    def run(
        config: Annotated[Path, typer.Option(help="Settings (YAML).")] = (
            EXAMPLES / ("builtin.yaml" if name == "study" else f"{name}_builtin.yaml")
        ),
        changes: Overrides = None,
        plan: Plan = False,
        fresh: Fresh = False,
    ) -> None:
        from flows.command_bodies import start
        from flows.flow import StagedFlow

        flow = load_flow(name)
        assert isinstance(flow, StagedFlow), "the sweep has its own command"
        start(flow, config, changes or [], plan_only=plan, fresh=fresh)

    app.command(name, help=about)(run)


for _name, _about in FLOWS.items():
    if _name not in _NO_STANDARD_COMMAND:
        _add(_name, _about)


@app.command()
def sweep(
    config: Annotated[Path, typer.Option(help="Sweep file (YAML).")] = (
        EXAMPLES / "sweep_beta.yaml"
    ),
    changes: Overrides = None,
) -> None:
    """Try settings of another flow: a grid, random draws or Optuna's TPE; resumes when rerun."""
    from flows.command_bodies import start_sweep

    start_sweep(config, changes or [])


@app.command()
def lineage(
    address: Annotated[
        str,
        typer.Argument(
            help="A result: store.address, <stage>/<key>, MLflow run id or models:/name/version."
        ),
    ],
) -> None:
    """Show what a result was made from: inputs, data revisions, settings, code."""
    from flows.command_bodies import show_lineage

    show_lineage(address)


@app.command()
def audit(
    config: Annotated[
        Path | None,
        typer.Option(help="Audit file (YAML); default without --model: the built-in study's."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Folder or Hub name of the model that preference training will start from."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Pairs: JSON lines with prompt, chosen and rejected, or parquet."),
    ] = None,
    trained: Annotated[
        str | None,
        typer.Option(
            help="Folder or Hub name of the trained model, to compare the rankings with its effect."
        ),
    ] = None,
    changes: Overrides = None,
    plan: Plan = False,
    fresh: Fresh = False,
) -> None:
    """Rank preference pairs, before training, by the effect of one step on each."""
    from flows.audit import FLOW, named_on_command_line
    from flows.command_bodies import start

    named = named_on_command_line(model, data, trained)
    file = config or (None if named else EXAMPLES / "audit_builtin.yaml")
    start(FLOW, file, [*named, *(changes or [])], plan_only=plan, fresh=fresh)


@app.command()
def reconcile() -> None:
    """Send unsent MLflow operations, close abandoned MLflow runs, kill this host's orphans."""
    from flows.command_bodies import RECONCILED, start_reconcile

    for name, count in start_reconcile().items():
        typer.echo(f"{count:5d}  {RECONCILED[name]}")


@app.command()
def join() -> None:
    """Run part of the ranks of trainings that another host starts; Ctrl-C ends it."""
    from tasks.runtime.launch.join import main as join_trainings

    join_trainings()


@app.command()
def up(
    prefect_port: Annotated[int, typer.Option(help="Port of the Prefect server.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(help="Port of the MLflow server.")] = 5000,
    profile: Annotated[
        str,
        typer.Option(help="local: SQLite. full: PostgreSQL and Redis, in a separate home."),
    ] = "local",
) -> None:
    """Start the servers on this home's runs, with deployments and workers; Ctrl-C ends them.

    The printed links log a browser in for 30 days.
    """
    from flows.up import profile_named, start
    from tasks.runtime.system.settings import Settings

    start(
        Settings.from_environment().home,
        typer.echo,
        profile=profile_named(profile),
        prefect_port=prefect_port,
        mlflow_port=mlflow_port,
    )


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
            errors.print("interrupted; run the same command again to go on")
        raise
    except DynolabError as error:
        errors.print(f"[red]error[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
