"""What the command line does with a flow: plan it, or run it and show the way to its results."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dynolab.store import Store
from flows.catalogue import Command, Parameters
from flows.parameters import load_parameters
from flows.result_table import result_table, write_table
from tasks.runtime.chain import plan
from tasks.runtime.opening import open_store, planning_platform
from tasks.runtime.servers.services import PREFECT
from tasks.runtime.servers.stack import use_services
from tasks.runtime.system.settings import Settings
from tasks.runtime.work import StageResult

console = Console()

LAST_WORDS_SECONDS = 5.0

Results = dict[str, dict[str, Any]]


def start(
    command: Command[Parameters],
    file: Path | None,
    changes: Sequence[str],
    *,
    plan_only: bool,
    fresh: bool,
) -> None:
    """Plans or runs a flow with the parameters of a file, changed.

    What cannot work ends here, before any server starts.
    """
    parameters = load_parameters(command.parameters, file, changes)
    steps, given = command.planned(parameters)
    if not plan_only:
        _run(command, parameters, fresh=fresh)
        return
    table = Table("stage", "state", "key")
    for planned in plan(steps, planning_platform(), given):
        table.add_row(
            planned.step,
            planned.state,
            planned.key[:16] if planned.key else "known once its inputs are",
        )
    console.print(table)


def _run(command: Command[Parameters], parameters: Parameters, *, fresh: bool) -> None:
    """Runs a flow on the servers at hand, or on its own for as long as it takes.

    Copies a file of one of its results to where a person finds it, and writes the run's numbers
    beside it.
    """
    settings, began = Settings.from_environment(), time.monotonic()
    store = open_store(settings)
    store.check_writable()
    servers = [] if settings.prefect_api_url else [PREFECT]
    with use_services(settings.home, servers) as services:
        os.environ.update(services.environment())
        try:
            results = command.run(parameters, fresh=fresh)
        finally:
            send_last_words()
        made = results[command.page]
        copy = _friendly_copy(store, made, command.file, settings.home, parameters.name)
        write_table(
            result_table(
                store,
                command.page,
                parameters.model_dump(mode="json"),
                {step: StageResult.model_validate(result) for step, result in results.items()},
            ),
            copy.with_suffix(".json"),
        )
    _show(command.name, results, copy, time.monotonic() - began)


def send_last_words() -> None:
    """Sends what Prefect still holds for its server, which ends before this process does."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=LAST_WORDS_SECONDS)
    EventsWorker.drain_all(timeout=LAST_WORDS_SECONDS)


def _friendly_copy(store: Store, result: dict[str, Any], file: str, home: Path, name: str) -> Path:
    """The page where a person finds it: `<home>/reports/<name>.html`, or as the file ends."""
    source = store.folder(result["address"], result["digest"]) / file
    page = home / "reports" / f"{name}{source.suffix}"
    page.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, page)
    return page


def _show(flow: str, results: Results, page: Path, seconds: float) -> None:
    table = Table("stage", "", "seconds", "key", box=None, pad_edge=False)
    for name, result in results.items():
        took = result["metrics"].get("seconds")
        table.add_row(
            name,
            "[green]cached[/green]" if result["cached"] else "computed",
            "" if took is None else f"{took:.1f}",
            result["key"][:12],
        )
    console.print(table)
    for name, result in results.items():
        dropped, cut = (
            result["metrics"].get(f"data/rows_{fate}", 0) for fate in ("dropped", "truncated")
        )
        if dropped or cut:
            console.print(
                f"{name}: longer than the model's context: {dropped:.0f} rows left out, "
                f"{cut:.0f} prompts cut",
                highlight=False,
            )
        if missing := result["metrics"].get("probes/missing", 0):
            console.print(
                f"{name}: {missing:.0f} rows could not be made; missing.jsonl says why",
                highlight=False,
            )
        asked, parsed = (result["metrics"].get(f"judge/{what}", 0) for what in ("asked", "parsed"))
        if parsed < asked:
            console.print(
                f"{name}: {asked - parsed:.0f} of {asked:.0f} verdicts are missing; the "
                "page says why",
                highlight=False,
            )
    console.print(f"\n{flow:7} {seconds:.1f} s", highlight=False)
    console.print(f"report  {page}", highlight=False, soft_wrap=True)
    console.print("servers [bold]make up[/bold] opens Prefect and MLflow on what was run")
