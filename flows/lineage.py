"""The command `dynolab lineage`: a result's ancestors as a tree."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from tasks.runtime.lineage import Ancestor, addressed, lineage
from tasks.runtime.opening import open_store
from tasks.runtime.servers.services import MLFLOW, client_variables
from tasks.runtime.servers.stack import running_services
from tasks.runtime.system.settings import Settings


def show_lineage(address: str, console: Console | None = None) -> None:
    """Prints the tree; raises `ConfigError` for what is no result."""
    settings = Settings.from_environment()
    store, uri = open_store(settings), settings.mlflow_tracking_uri
    environment: Mapping[str, str] = os.environ
    if uri is None and MLFLOW in (running := running_services(settings.home)):
        uri, environment = running[MLFLOW].url, client_variables(settings.home, running)
    branches: list[Tree] = []
    for one in lineage(store, addressed(store, address, uri, environment)):
        branch = Tree(_told(one)) if one.depth == 0 else branches[one.depth - 1].add(_told(one))
        branches[one.depth :] = [branch]
    (console or Console(soft_wrap=True)).print(branches[0])


def _told(one: Ancestor) -> str:
    """A result in a few lines: what it is, where it lies, what it was made from and with."""
    role = escape(f"{one.role}: ") if one.role else ""
    if one.result is None or one.manifest is None:
        return role + escape(f"content {one.digest[:16]}, which this store does not hold")
    manifest = one.manifest
    lines = [
        one.result.address,
        f"code {manifest.git_revision or 'unknown'}, stage version {manifest.version}, "
        f"torch {manifest.libraries.get('torch', 'unknown')}, {manifest.created:%Y-%m-%d %H:%M}",
    ]
    if one.sources:
        lines.append(", ".join(f"{name} {value}" for name, value in one.sources.items()))
    if manifest.mlflow_run_id:
        lines.append(f"MLflow run {manifest.mlflow_run_id}")
    head = f"{role}[bold]{escape(one.result.stage)}[/bold] {one.result.key[:16]}"
    return "\n".join([head, *(escape(line) for line in lines)])
