"""The command `dynolab sweep`: runs a sweep on the servers at hand, and says what came of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.commands import send_last_words
from flows.parameters import load_parameters
from flows.sweep_checks import check_sweep
from flows.sweep_parameters import SweepParameters
from tasks.runtime.opening import open_store
from tasks.runtime.servers.services import PREFECT
from tasks.runtime.servers.stack import use_services
from tasks.runtime.system.settings import Settings


def start_sweep(file: Path, changes: Sequence[str]) -> None:
    """Runs the sweep of a file, changed. What cannot work ends here, before any server starts."""
    parameters = load_parameters(SweepParameters, file, changes)
    check_sweep(parameters)
    settings = Settings.from_environment()
    open_store(settings).check_writable()
    servers = [] if settings.prefect_api_url else [PREFECT]
    with use_services(settings.home, servers) as services:
        os.environ.update(services.environment())
        from flows.sweep import sweep  # Prefect reads its settings when it is imported

        try:
            found = sweep(parameters)
        finally:
            send_last_words()
    _show(parameters, found, settings.home / "reports" / f"{parameters.name}.html")


def _show(parameters: SweepParameters, found: dict[str, Any], page: Path) -> None:
    console = Console()
    table = Table("trial", "ended", *parameters.space, parameters.metric, box=None, pad_edge=False)
    for row in found["trials"]:
        value = "" if row["value"] is None else f"{row['value']:.5g}"
        table.add_row(
            f"{row['number']}{' best' if row['number'] == found['best'] else ''}",
            row["state"],
            *(f"{row['settings'].get(name, '')}" for name in parameters.space),
            value,
        )
    console.print(table)
    console.print(f"page    {page}", highlight=False, soft_wrap=True)
