"""What the command line does with a flow: plan it, or run it and show the way to its results."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dynolab.store import Store
from flows.audit_parameters import AuditParameters, resolved_audit
from flows.audit_steps import audit_steps
from flows.forces_parameters import ForcesParameters, resolved_forces
from flows.forces_steps import forces_steps
from flows.grpo_parameters import GrpoParameters
from flows.grpo_steps import grpo_steps
from flows.parameters import StudyParameters
from flows.probes_parameters import ProbesParameters
from flows.probes_steps import probes_steps
from flows.steps import study_steps
from tasks.runtime.chain import Step, plan
from tasks.runtime.opening import open_store, planning_platform
from tasks.runtime.services import PREFECT
from tasks.runtime.settings import Settings
from tasks.runtime.stack import use_services
from tasks.runtime.work import StageResult

console = Console()

LAST_WORDS_SECONDS = 5.0

Results = dict[str, dict[str, Any]]


def plan_study(parameters: StudyParameters) -> None:
    """Says of every stage of a study whether its result is there already."""
    _show_plan(study_steps(parameters), {})


def plan_forces(parameters: ForcesParameters) -> None:
    """Says of every stage of a force analysis whether its result is there already."""
    known, given = resolved_forces(parameters, planning_platform())
    _show_plan(forces_steps(known, given), given)


def plan_audit(parameters: AuditParameters) -> None:
    """Says of every stage of an audit whether its result is there already."""
    known, given = resolved_audit(parameters, planning_platform())
    _show_plan(audit_steps(known, given), given)


def plan_grpo(parameters: GrpoParameters) -> None:
    """Says of every stage of a comparison whether its result is there already."""
    _show_plan(grpo_steps(parameters), {})


def plan_probes(parameters: ProbesParameters) -> None:
    """Says of every stage of a probe set's building whether its result is there already."""
    _show_plan(probes_steps(parameters), {})


def run_study(parameters: StudyParameters, *, fresh: bool) -> None:
    """Runs the study flow on the servers at hand, or on its own for as long as it takes."""

    def run() -> Results:
        from flows.study import study  # Prefect reads its settings at import

        return study(parameters, fresh=fresh)

    _run("study", run, page="report", file="report.html", name=parameters.name)


def run_forces(parameters: ForcesParameters, *, fresh: bool) -> None:
    """Runs the flow `forces` on the servers at hand, or on its own for as long as it takes."""
    resolved_forces(parameters, planning_platform())  # what cannot work ends before any server

    def run() -> Results:
        from flows.forces import forces

        return forces(parameters, fresh=fresh)

    _run("forces", run, page="force-page", file="forces.html", name=parameters.name)


def run_audit(parameters: AuditParameters, *, fresh: bool) -> None:
    """Runs the flow `audit` on the servers at hand, or on its own for as long as it takes."""
    resolved_audit(parameters, planning_platform())  # what cannot work ends before any server

    def run() -> Results:
        from flows.audit import audit

        return audit(parameters, fresh=fresh)

    _run("audit", run, page="audit-page", file="audit.html", name=parameters.name)


def run_grpo(parameters: GrpoParameters, *, fresh: bool) -> None:
    """Runs the flow `grpo` on the servers at hand, or on its own for as long as it takes."""

    def run() -> Results:
        from flows.grpo import grpo

        return grpo(parameters, fresh=fresh)

    _run("grpo", run, page="grpo-page", file="grpo.html", name=parameters.name)


def run_probes(parameters: ProbesParameters, *, fresh: bool) -> None:
    """Runs the flow `probes` on the servers at hand, or on its own for as long as it takes."""

    def run() -> Results:
        from flows.probes import probes

        return probes(parameters, fresh=fresh)

    _run("probes", run, page="probe-set", file="probes.jsonl", name=parameters.name)


def _show_plan(steps: Sequence[Step], given: Mapping[str, StageResult]) -> None:
    table = Table("stage", "state", "key")
    for planned in plan(steps, planning_platform(), given):
        table.add_row(
            planned.step,
            planned.state,
            planned.key[:16] if planned.key else "known once its inputs are",
        )
    console.print(table)


def _run(flow: str, run: Callable[[], Results], *, page: str, file: str, name: str) -> None:
    """Runs a flow and copies a file of one of its results to where a person finds it."""
    settings, began = Settings.from_environment(), time.monotonic()
    store = open_store(settings)
    store.check_writable()
    servers = [] if settings.prefect_api_url else [PREFECT]
    with use_services(settings.home, servers) as services:
        os.environ.update(services.environment())
        try:
            results = run()
        finally:
            _send_last_words()
        copy = _friendly_copy(store, results[page], file, settings.home, name)
    _show(flow, results, copy, time.monotonic() - began)


def _send_last_words() -> None:
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
            console.print(f"{name}: longer than the model's context: {dropped:.0f} rows left out, "
                          f"{cut:.0f} prompts cut", highlight=False)  # fmt: skip
        if missing := result["metrics"].get("probes/missing", 0):
            console.print(f"{name}: {missing:.0f} rows could not be made; missing.jsonl says why",
                          highlight=False)  # fmt: skip
    console.print(f"\n{flow:7} {seconds:.1f} s", highlight=False)
    console.print(f"report  {page}", highlight=False, soft_wrap=True)
    console.print("servers [bold]make up[/bold] opens Prefect and MLflow on what was run")
