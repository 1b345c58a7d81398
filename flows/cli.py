"""The command `dynolab`: run a flow without a standing server, plan it, or start the servers."""

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

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A dynamometer for fine-tuning: which example, token and part of the loss pushed what.",
)
errors = Console(stderr=True)

QUIET = {
    # Prefect's own lines go to its server, ours to the terminal.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",  # MLflow does not know the "1"
    # Threads that spin while they wait slow each other down a hundredfold on a busy machine.
    "OMP_WAIT_POLICY": "PASSIVE",
}

INTERRUPTED = 130  # of Ctrl-C and SIGTERM

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting, as in sft.steps=20."),
]


Plan = Annotated[bool, typer.Option("--plan", help="Only say what would run.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Compute every stage again.")]
EXAMPLES = Path("deploy/studies")

_WITH_OPTIONS_OF_THEIR_OWN = ("audit", "sweep", "train")
"""`train` is started from Prefect alone."""


def _add(name: str, about: str) -> None:
    """Makes a flow of the registry a command."""

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
        assert isinstance(flow, StagedFlow), "the sweep is a command of its own"
        start(flow, config, changes or [], plan_only=plan, fresh=fresh)

    app.command(name, help=about)(run)


for _name, _about in FLOWS.items():
    if _name not in _WITH_OPTIONS_OF_THEIR_OWN:
        _add(_name, _about)


@app.command()
def sweep(
    config: Annotated[Path, typer.Option(help="Sweep file (YAML).")] = (
        EXAMPLES / "sweep_beta.yaml"
    ),
    changes: Overrides = None,
) -> None:
    """Try settings of another flow: a grid, draws or Optuna's TPE; goes on where it stopped."""
    from flows.command_bodies import start_sweep

    start_sweep(config, changes or [])


@app.command()
def lineage(
    address: Annotated[
        str,
        typer.Argument(
            help="A result: store.address, <stage>/<key>, an MLflow run's id, models:/name/version."
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
        typer.Option(help="Audit file (YAML); the built-in study's, where no model is named."),
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
        typer.Option(help="Folder or Hub name of what it led to: which ranking foresaw that?"),
    ] = None,
    changes: Overrides = None,
    plan: Plan = False,
    fresh: Fresh = False,
) -> None:
    """Rank preference pairs, before training, by what a step on each would do."""
    from flows.audit import FLOW, named_on_command_line
    from flows.command_bodies import start

    named = named_on_command_line(model, data, trained)
    file = config or (None if named else EXAMPLES / "audit_builtin.yaml")
    start(FLOW, file, [*named, *(changes or [])], plan_only=plan, fresh=fresh)


@app.command()
def reconcile() -> None:
    """Send what is unsent, close MLflow runs that nobody works on, kill orphans on this host."""
    from flows.command_bodies import RECONCILED, start_reconcile

    for name, count in start_reconcile().items():
        typer.echo(f"{count:5d}  {RECONCILED[name]}")


@app.command()
def join() -> None:
    """Run a share of the ranks of trainings that another host starts; Ctrl-C ends it."""
    from tasks.runtime.launch.join import main as join_trainings

    join_trainings()


@app.command()
def up(
    prefect_port: Annotated[int, typer.Option(help="Port of the Prefect server.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(help="Port of the MLflow server.")] = 5000,
    profile: Annotated[
        str,
        typer.Option(help="local: SQLite. full: PostgreSQL and Redis, in a home of its own."),
    ] = "local",
) -> None:
    """Start the servers on what was run here, with deployments and workers; Ctrl-C ends them.

    The links that it prints log in a browser, for 30 days.
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
    """Entry point: an error that Dynolab foresees is one message, and exit code 2."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    from tasks.runtime.servers.standing_servers import sigterm_as_interrupt

    try:
        with sigterm_as_interrupt():
            app()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            errors.print("interrupted; the same command goes on where this one stopped")
        raise
    except DynolabError as error:
        errors.print(f"[red]error[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
