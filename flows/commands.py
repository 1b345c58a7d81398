"""What the commands do: show, plan or run a flow, and print what it found and what is next."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dynolab.costs.machines import machine_named
from dynolab.data.sources.config import rows_line
from dynolab.data.unknown import UnknownTokens
from dynolab.errors import ConfigError, DynolabError, ServiceFailed, check_known
from dynolab.grouping import grouped
from dynolab.hub import names_may_stay
from flows.flow import (
    Flow,
    FlowParameters,
    Fresh,
    Parameters,
    Plan,
    Planned,
    Results,
    StagedFlow,
    plan,
)
from flows.parameters.parse import load_parameters
from flows.sweep.flow import FLOW
from flows.sweep.parameters import SweepParameters
from flows.sweep.run import check_sweep, trial_of
from flows.sweep.trials import grid_points
from tasks.runtime.open_platform import open_store, planning_platform
from tasks.runtime.servers.service import MLFLOW, PREFECT
from tasks.runtime.servers.services import PATIENCE
from tasks.runtime.servers.standing import running_services, use_services
from tasks.runtime.stage import Platform
from tasks.runtime.system.invocation import invocation
from tasks.runtime.system.settings import Settings
from tasks.runtime.work import StageResult
from tasks.shared.result_table import result_table, write_table

console = Console()

FLUSH_SECONDS = 5.0
KEPT = "finished stages are kept; run the same command again to go on"


@dataclass(frozen=True)
class Wanted:
    """What a command does with its settings: run them, or only `show` or `plan` them.

    `fresh` computes stages again; `json` ends the output with one line of JSON. `machine`: by
    name, that a plan is made for; default: this one.
    """

    plan: bool = False
    machine: str | None = None
    show: bool = False
    fresh: Fresh = False
    json: bool = False

    def __post_init__(self) -> None:
        """**Raises:** `ConfigError` for a machine without a plan, and one that is not known."""
        if self.machine is not None:
            machine_named(self.machine)
            if not self.plan:
                raise ConfigError("--machine", self.machine, "is what --plan plans for; add --plan")


def start(
    flow: StagedFlow[Parameters], file: Path | None, changes: Sequence[str], choices: Wanted
) -> None:
    """Plan, show or run a flow with a file's parameters and the `changes`.

    Raises ConfigError for settings that cannot work, before any server starts.
    """
    parameters = load_parameters(flow.parameters, file, changes)
    platform = planning_platform()
    if choices.plan:
        _show_plan(flow, parameters, platform, choices)
        return
    planned = flow.plan(parameters, platform)
    if choices.show:
        _show_settings(planned.parameters, choices)
        return
    _check_fresh(planned, choices)
    began = time.monotonic()
    results: Results = run_on_servers(flow, parameters, planned, fresh=choices.fresh)
    settings = Settings.from_environment()
    store, page = open_store(settings), flow.page_in(settings.reports, parameters.name)
    stages = {step: StageResult.model_validate(result) for step, result in results.items()}
    table = result_table(store, flow.page, parameters.model_dump(mode="json"), stages)
    write_table(table, page.with_suffix(".json"))
    seconds = time.monotonic() - began
    from flows.run import answer_of, next_commands

    answer = answer_of(store, stages[flow.page])
    show_results(flow.name, results, page, seconds, answer)
    commands = dict(next_commands(flow, parameters.name, stages))
    lines = [f"files   {commands['files']} fetches them from {settings.store}"]
    if not running_services(settings.home):
        lines.append(_later())
    if "next" in commands:
        lines.append(f"next    {commands['next']}")
    console.print("\n".join(lines), soft_wrap=True, markup=False, highlight=False)
    if choices.json:
        print_json(
            flow=flow.name,
            name=parameters.name,
            page=str(page),
            seconds=round(seconds, 1),
            answer=answer,
            metrics=stages[flow.page].metrics,
            stages={
                name: {"result": stage.short, "address": stage.address, "cached": stage.cached}
                for name, stage in stages.items()
            },
        )


def start_sweep(file: Path, changes: Sequence[str], choices: Wanted) -> None:
    """Run the sweep of a file, with the `changes`; raises ConfigError before any server starts."""
    parameters = load_parameters(FLOW.parameters, file, changes)
    check_sweep(parameters)
    if choices.show:
        _show_settings(parameters, choices)
        return
    if choices.plan:
        _show_trial_plan(parameters, choices)
        return
    settings = Settings.from_environment()
    # Servers that the command starts end with it, and what it prints must not lead there.
    servers_stay = bool(settings.mlflow_tracking_uri or running_services(settings.home))
    trials = run_on_servers(FLOW, parameters)
    page = settings.reports / f"{parameters.name}.html"
    _show_trials(trials, page, servers_stay=servers_stay)
    if choices.json:
        print_json(flow=FLOW.name, name=parameters.name, page=str(page), **trials)


def run_on_servers(
    flow: Flow[Parameters],
    parameters: Parameters,
    planned: Plan | None = None,
    *,
    fresh: Fresh = False,
) -> Any:
    """Run a flow, as it is planned, on the home's servers, or on servers started for this run.

    **Raises** what the flow raises, and `ServiceFailed` if Prefect's server is away for longer than
    a run waits. Where the flow has ended by then, its results count.
    """
    settings = Settings.from_environment()
    open_store(settings).check_writable()
    done: list[Any] = []
    with use_services(settings.home, [] if settings.prefect_api_url else [PREFECT]) as services:
        os.environ.update({**PATIENCE, **os.environ, **services.environment()})
        from flows.run import as_prefect_flow

        try:
            return as_prefect_flow(flow, planned, done)(parameters, fresh=fresh)
        except DynolabError:
            raise
        except Exception as error:
            if not is_outage(error):
                raise
            if done:
                console.print("Prefect did not come back; the run there has no end.")
                return done[0]
            services.check_alive()  # its log tells more than that nobody answered
            raise ServiceFailed(
                "Prefect", [f"nobody answers at {os.environ['PREFECT_API_URL']}: {error}", KEPT]
            ) from error
        finally:
            # Buffered logs and events: the server may end before this process.
            from prefect.events.worker import EventsWorker
            from prefect.logging.handlers import APILogWorker

            APILogWorker.drain_all(timeout=FLUSH_SECONDS)
            EventsWorker.drain_all(timeout=FLUSH_SECONDS)


def is_outage(error: BaseException | None) -> bool:
    """Whether an error comes from a Prefect server that is away, or answers nothing but errors."""
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= 500
    if error is None or isinstance(error, httpx.TransportError):
        return error is not None
    return is_outage(error.__cause__ or error.__context__)


def print_json(**content: Any) -> None:
    """Print the line of JSON that ends a command's output."""
    print(json.dumps(content, ensure_ascii=False), flush=True)


def _show_settings(parameters: FlowParameters, choices: Wanted) -> None:
    """Print all settings, with the sources pinned to their current content."""
    if choices.json:
        print_json(settings=parameters.model_dump(mode="json"))
    else:
        print(parameters.as_yaml, end="")


def _check_fresh(planned: Plan, choices: Wanted) -> None:
    """**Raises:** `ConfigError` for a stage to compute again that the flow does not have."""
    for name in choices.fresh if isinstance(choices.fresh, tuple) else ():
        if not any(step.is_among([name]) for step in planned.steps):
            check_known("--fresh", name, [step.name for step in planned.steps])


def _show_plan(
    flow: StagedFlow[Parameters], parameters: Parameters, platform: Platform, choices: Wanted
) -> None:
    from flows.plan_table import show_plan

    with names_may_stay() as unresolved:
        planned = flow.plan(parameters, platform)
    _check_fresh(planned, choices)
    if unresolved:
        names = ", ".join(dict.fromkeys(unresolved))
        console.print(f"The Hub did not resolve {names}: keys are known when it does.")
        steps = [Planned(step.name) for step in planned.steps]
    else:
        steps = list(plan(planned.steps, platform, planned.existing))
    stages = show_plan(console, planned, steps, choices.machine)
    if choices.json:
        print_json(stages=stages)


def _show_trial_plan(parameters: SweepParameters, choices: Wanted) -> None:
    """Print the trials of a grid, and how many of each one's stages are still to run."""
    if parameters.sampler != "grid":
        console.print(f"{parameters.total} trials, drawn by {parameters.sampler} as they begin")
        return
    table, platform = Table("trial", *parameters.space, "to run"), planning_platform()
    trials = []
    for number, point in enumerate(grid_points(parameters)):
        flow, settings = trial_of(parameters, point)
        planned = flow.plan(settings, platform)
        steps = list(plan(planned.steps, platform, planned.existing))
        due = [step.step for step in steps if step.state == "to run"]
        table.add_row(str(number), *map(str, point.values()), f"{len(due)} of {len(steps)} stages")
        trials.append({"number": number, "settings": point, "to_run": due})
    console.print(table)
    if choices.json:
        print_json(trials=trials)


def _show_trials(trials: dict[str, Any], page: Path, *, servers_stay: bool) -> None:
    head, *rows = trials.pop("table")
    table = Table(*head, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if trials["compare"] and servers_stay:
        console.print(f"compare {trials['compare']}", highlight=False, soft_wrap=True)
    console.print(f"page    {page}", highlight=False, soft_wrap=True)
    if not servers_stay:
        console.print(_later(), highlight=False, soft_wrap=True, markup=False)


def _later() -> str:
    """The line that says how to see runs once the command's own servers have ended."""
    return f"later   {invocation()} up shows these runs in Prefect and MLflow"


RECONCILED = {
    "reaped": "orphaned processes killed",
    "unsent": "runs still waiting for MLflow",
}


def start_reconcile() -> dict[str, int]:
    """Clean up with the configured MLflow, or the home's own; returns counts (`RECONCILED`)."""
    from tasks.runtime.cleanup import clean_up

    settings = Settings.from_environment()
    with use_services(settings.home, [] if settings.mlflow_tracking_uri else [MLFLOW]) as services:
        os.environ.update(services.environment())
        return clean_up(Settings.from_environment())


def show_results(
    flow: str,
    results: Results,
    page: Path,
    seconds: float,
    answer: Sequence[str],
) -> None:
    """Prints what became of a run's rows, its page's place and its `answer`."""
    for line in (*_about_rows(results), *_overlong(results), *_missing(results)):
        console.print(line, highlight=False, soft_wrap=True)
    cached = sum(result["cached"] for result in results.values())
    stages = f"{len(results)} stages, of which {cached} cached"
    console.print(f"\n{flow:7} {seconds:.1f} s, {stages}", highlight=False)
    console.print(f"report  {page}", highlight=False, soft_wrap=True)
    for sentence in ("", *answer, "") if answer else ():
        # A line end within a command would end it where it is pasted.
        console.print(sentence, markup=False, highlight=False, soft_wrap=" --set " in sentence)


def _overlong(results: Results) -> Iterator[str]:
    """Rows that were too long; trainings with the same numbers share a line."""
    counts = (
        tuple(int(result["metrics"].get(f"data/rows_{end}", 0)) for end in ("dropped", "truncated"))
        for result in results.values()
    )
    for (dropped, truncated), names in grouped(zip(counts, results, strict=True)).items():
        if dropped or truncated:
            who = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            yield (
                f"{who}: longer than the model's context: {dropped} rows dropped, {truncated} "
                "prompts truncated"
            )


def _missing(results: Results) -> Iterator[str]:
    """Rows of a probe set that could not be made, and verdicts that judges did not give."""
    for name, result in results.items():
        if missing := result["metrics"].get("probes/missing", 0):
            yield f"{name}: {missing:.0f} rows could not be made; missing.jsonl says why"
        total, parsed = (result["metrics"].get(f"judge/{key}", 0) for key in ("asked", "parsed"))
        if parsed < total:
            yield (
                f"{name}: {total - parsed:.0f} of {total:.0f} verdicts are missing; the page says "
                "why"
            )


def _about_rows(results: Results) -> Iterator[str]:
    """What became of the data's rows, and what the tokenizer does not know.

    The counts of rows are told where they are read; what is unknown may spoil any run, and is told
    after each.
    """
    computed = (result["metrics"] for result in results.values() if not result["cached"])
    yield from filter(None, dict.fromkeys(map(rows_line, computed)))
    metrics = (result["metrics"] for result in results.values())
    unknown = max(map(UnknownTokens.of_metrics, metrics), key=lambda tokens: tokens.total)
    if unknown.tokens:
        option = unknown.option and f": add {unknown.option}"
        yield f"[yellow]{escape(f'{unknown}{option}')}[/yellow]"
