"""Prints what a result was made from."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from flows.command_bodies import print_json
from tasks.runtime.lineage import Ancestor, addressed, lineage
from tasks.runtime.open_platform import open_store
from tasks.runtime.servers.server_processes import MLFLOW, client_variables
from tasks.runtime.servers.standing_servers import running_services
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.client import use_login

WIDTH = 400  # columns: an address that a terminal wraps can be copied, a cut one not


def show_lineage(address: str, output: Console | None = None, *, as_json: bool = False) -> None:
    """Print a result's lineage as a tree, and `as_json` also as a line of JSON.

    Raises `ConfigError` if there is no such result.
    """
    settings = Settings.from_environment()
    store, uri = open_store(settings), settings.mlflow_tracking_uri
    if uri is None and MLFLOW in (running := running_services(settings.home)):
        uri = running[MLFLOW].url
        use_login(client_variables(settings.home, running))
    branches: list[Tree] = []
    ancestors = list(lineage(store, addressed(store, address, uri)))
    for ancestor in ancestors:
        text, depth = _description(ancestor), ancestor.depth
        branch = Tree(text) if depth == 0 else branches[depth - 1].add(text)
        branches[depth:] = [branch]
    (output or Console(width=WIDTH)).print(branches[0])
    if as_json:
        print_json(results=[_plain(ancestor) for ancestor in ancestors])


def _plain(ancestor: Ancestor) -> dict[str, Any]:
    """A result of a lineage as plain data; what the store no longer holds is null."""
    result, manifest = ancestor.result, ancestor.manifest
    return {
        "input": ancestor.role or None,
        "depth": ancestor.depth,
        "digest": ancestor.digest,
        "address": result and result.address,
        "code": manifest and manifest.git_revision,
        "sources": ancestor.sources,
        "mlflow_run_id": manifest and manifest.mlflow_run_id,
    }


def _description(ancestor: Ancestor) -> str:
    """A result in a few lines: stage, address, code, libraries, data sources, MLflow run."""
    role = escape(f"{ancestor.role}: ") if ancestor.role else ""
    if ancestor.result is None or ancestor.manifest is None:
        return role + escape(f"content {ancestor.digest[:16]}, which this store does not hold")
    manifest = ancestor.manifest
    lines = [
        ancestor.result.address,
        f"code {manifest.git_revision or 'unknown'}, stage version {manifest.version}, "
        f"torch {manifest.libraries.get('torch', 'unknown')}, {manifest.created:%Y-%m-%d %H:%M}",
    ]
    if ancestor.sources:
        lines.append(", ".join(f"{name} {value}" for name, value in ancestor.sources.items()))
    if manifest.mlflow_run_id:
        lines.append(f"MLflow run {manifest.mlflow_run_id}")
    head = f"{role}[bold]{escape(ancestor.result.stage)}[/bold] {ancestor.result.key[:16]}"
    return "\n".join([head, *(escape(line) for line in lines)])
