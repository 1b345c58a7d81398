"""The commands on results and servers."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.command_options import Json


def lineage(
    address: Annotated[
        str,
        typer.Argument(
            help="A result: store.address, <stage>/<key>, MLflow run id or models:/name/version."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Show what a result was made from: inputs, data revisions, settings, code."""
    from flows.shown_lineage import show_lineage

    show_lineage(address, as_json=as_json)


def path(
    address: Annotated[
        str,
        typer.Argument(help="<stage>/<key> with the key's first digits, or store.address."),
    ],
    as_json: Json = False,
) -> None:
    """Print the folder that holds a result's files, such as `dynolab path preference/f8f6`."""
    from flows.command_bodies import print_json, result_folder

    folder = result_folder(address)
    typer.echo(folder)
    if as_json:
        print_json(path=str(folder))


def reconcile(as_json: Json = False) -> None:
    """Send unsent MLflow operations, close abandoned MLflow runs, kill this host's orphans."""
    from flows.command_bodies import RECONCILED, print_json, start_reconcile

    counts = start_reconcile()
    for name, count in counts.items():
        typer.echo(f"{count:5d}  {RECONCILED[name]}")
    if as_json:
        print_json(**counts)


def join() -> None:
    """Run part of the ranks of trainings that another host starts; Ctrl-C ends it."""
    from tasks.runtime.launch.join import main as join_trainings

    join_trainings()


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
