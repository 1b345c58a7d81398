"""What the command line does with a study: plan it, or run it and show the way to its results."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dynolab.store import Store
from flows.parameters import StudyParameters
from tasks.runtime.chain import plan
from tasks.runtime.services import PREFECT
from tasks.runtime.settings import Settings
from tasks.runtime.showing import make_progress
from tasks.runtime.stack import use_services
from tasks.runtime.stage import Platform

console = Console()

LAST_WORDS_SECONDS = 5.0


def show_plan(parameters: StudyParameters) -> None:
    """Prints every stage with its key, and whether its result is there already."""
    from flows.steps import study_steps

    table = Table("stage", "state", "key")
    for planned in plan(study_steps(parameters), _planning_platform(Settings.from_environment())):
        table.add_row(
            planned.step,
            planned.state,
            planned.key[:16] if planned.key else "known once its inputs are",
        )
    console.print(table)


def run_study(parameters: StudyParameters, *, fresh: bool) -> None:
    """Runs the study flow on the servers at hand, or on its own for as long as it takes."""
    settings, began = Settings.from_environment(), time.monotonic()
    store = Store(settings.store, cache=settings.cache, endpoint=settings.store_endpoint)
    store.check_writable()
    servers = [] if settings.prefect_api_url else [PREFECT]
    with use_services(settings.home, servers) as services:
        os.environ.update(services.environment())
        from flows.study import study  # Prefect reads its settings at import

        try:
            results = study(parameters, fresh=fresh)
        finally:
            _send_last_words()
        page = _friendly_copy(store, results["report"], settings.home, parameters.name)
    _show(results, page, time.monotonic() - began)


def _send_last_words() -> None:
    """Sends what Prefect still holds for its server, which ends before this process does."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=LAST_WORDS_SECONDS)
    EventsWorker.drain_all(timeout=LAST_WORDS_SECONDS)


def _planning_platform(settings: Settings) -> Platform:
    def no_tracking() -> Any:
        raise AssertionError("a plan computes nothing")

    store = Store(settings.store, cache=settings.cache, endpoint=settings.store_endpoint)
    return Platform(settings, store, no_tracking, make_progress)


def _friendly_copy(store: Store, report: dict[str, Any], home: Path, name: str) -> Path:
    """The report where a person finds it: `<home>/reports/<study>.html`."""
    source = store.folder(report["address"], report["digest"]) / "report.html"
    page = home / "reports" / f"{name}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, page)
    return page


def _show(results: dict[str, dict[str, Any]], page: Path, seconds: float) -> None:
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
            console.print(f"{name}: longer than the model's context: {dropped:.0f} rows left out, "
                          f"{cut:.0f} prompts cut", highlight=False)  # fmt: skip
    console.print(f"\nstudy   {seconds:.1f} s", highlight=False)
    console.print(f"report  {page}", highlight=False, soft_wrap=True)
    console.print("servers [bold]make up[/bold] opens Prefect and MLflow on what was run")
