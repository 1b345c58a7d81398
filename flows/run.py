"""Runs a flow's stages as Prefect tasks on one platform, under one MLflow parent run.

Its page lies in the home's `reports`, while the flow runs and when it has ended.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import UUID

import prefect
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.runtime import flow_run
from prefect.states import Completed, Crashed, State

from dynolab.aside import write_aside, write_text_aside
from dynolab.data.rows import Example, ProbeRow, read_rows
from dynolab.errors import Pruned
from dynolab.store import Store
from dynolab.training.config import EngineConfig, LoopConfig, TrainConfig
from dynolab.training.examples import check_rows
from flows.flow import Flow, Fresh, Parameters, Plan, Results, StagedFlow, Step
from flows.registry import FLOWS
from tasks.report import REMEDIES, remedies_command
from tasks.runtime.launch.devices import check_enough, host_devices
from tasks.runtime.launch.launcher import ranks_per_host
from tasks.runtime.open_platform import open_platform, planning_platform
from tasks.runtime.stage import ADDRESS_TAG, DIGEST_TAG, Platform, run_stage
from tasks.runtime.system.invocation import invocation
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.mlflow_pages import PAGE_FOLDER, SUMMARY, arms_page, literal, run_page
from tasks.runtime.track.progress import CLOSE_SECONDS, publish_links, run_title, slug
from tasks.runtime.track.runs import Run, RunTracker, shown_params
from tasks.runtime.training_monitor import follow
from tasks.runtime.work import StageResult
from tasks.training import SFT, check_probes

log = logging.getLogger(__name__)

COLUMNS_OF_ARMS = 8  # measured held out, in MLflow's table of a comparison's arms
SHOWN_SECONDS = 10.0  # an early page takes a second to make


def as_prefect_flow(
    flow: Flow[Any], planned: Plan | None = None, done: list[Any] | None = None
) -> prefect.Flow[..., Any]:
    """Wraps a flow as a Prefect flow with arguments `parameters` and `fresh` (`Fresh`).

    **Arguments:** `planned`: the flow's plan for these parameters, if it is made. `done`: gets what
    the flow returns, before Prefect is told that it has ended.
    """

    def run(parameters: Any, fresh: Any = False) -> Any:
        results = run_flow(flow, parameters, planned, fresh=fresh)
        if done is not None:
            done.append(results)
        return results

    run.__doc__ = FLOWS[flow.name]
    return prefect.flow(name=flow.name, flow_run_name="{parameters.name}")(run)


def run_flow(
    flow: Flow[Parameters],
    parameters: Parameters,
    planned: Plan | None = None,
    *,
    fresh: Fresh = False,
) -> Any:
    """Runs a flow inside a Prefect flow run; `fresh` computes every stage again, or those named."""
    if not isinstance(flow, StagedFlow):
        assert flow.body is not None, "a flow has stages or a body"
        return flow.body(parameters)
    if (flow_run.run_count or 0) > 1:
        this_run = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(flow_run.id)]))
        lost: State[Any] = Crashed(message="Its process was ended; the run goes on in another.")
        with get_client(sync_client=True) as client:
            for task_run in client.read_task_runs(flow_run_filter=this_run):
                if task_run.state is not None and task_run.state.is_running():
                    client.set_task_run_state(task_run.id, lost, force=True)
    planned = planned or flow.plan(parameters, planning_platform())
    return run_plan(flow, planned, fresh=fresh)


def run_plan(flow: StagedFlow[Any], plan: Plan, *, fresh: Fresh) -> Results:
    """Runs a flow's steps in order; returns their results as plain data.

    The home's `reports` get the flow's page, also while it fills.

    A step whose result is committed ends in state `Cached`. Tasks are called, not submitted, so
    that cancelling the flow run signals the training in it.
    """
    parameters = plan.parameters
    compared = [step.name for step in plan.steps if step.compared_by]
    trainings = [
        step.name
        for step in plan.steps
        # Of a comparison without the finetuning that its trainings start from.
        if isinstance(step.config, LoopConfig) and not (compared and step.stage is SFT)
    ]
    with open_platform(
        study=parameters.name,
        project=parameters.project,
        tags={"kind": flow.name, "flow": flow.name, **plan.tags},
        params=shown_params(parameters),
        settings_yaml=parameters.as_yaml,
        charts=bool(trainings),
    ) as platform:
        shown = partial(write_early_page, flow, plan, platform=platform)
        results = run_on(platform, plan, fresh=fresh, shown=shown)
        files = page_name(parameters.name)
        for name in {parameters.name, files}:
            copy_page(flow, name, results, platform)
        lead_on(flow, parameters.name, files, results, trainings, compared, platform)
        if plan.trained is not None and platform.has_worked and platform.parent_run is not None:
            model = f"{parameters.project}-{parameters.name}"
            register_model(platform.parent_run, model, results[plan.trained])
    return {name: result.model_dump(mode="json") for name, result in results.items()}


def run_on(
    platform: Platform,
    plan: Plan,
    *,
    fresh: Fresh,
    shown: Callable[[Mapping[str, StageResult]], None] | None = None,
) -> dict[str, StageResult]:
    """Runs the steps in order on an open platform; returns their results.

    The parent run gets the metrics of `plan.trained` by the same names when that step has ended,
    and those of the last step as `result/…`.

    `shown` is given the results so far when one was computed, but for the last, and at most every
    `SHOWN_SECONDS`.

    **Raises** `ConfigError` before the first step if a training's ranks do not divide among hosts,
    or are more than a host's GPUs.
    """
    check_hosts(plan.steps, platform.settings)
    results, shown_at = dict(plan.existing), -math.inf
    compared = any(step.compared_by for step in plan.steps)
    for step in plan.steps:
        again = step.is_among(fresh) if isinstance(fresh, tuple) else fresh
        results[step.name] = _as_task(step, results, platform, compared=compared, fresh=again)
        check_trained_rows(step.name, results[step.name], plan.steps, platform)
        trained = results.get(plan.trained or "")
        if trained is not None and platform.has_worked and platform.parent_run is not None:
            folder = platform.store.folder(trained.address, trained.digest)
            follow(folder / "metrics.jsonl", platform.parent_run)
        if (
            shown is not None
            and step is not plan.steps[-1]
            and not results[step.name].cached
            and time.monotonic() - shown_at > SHOWN_SECONDS
        ):
            shown(results)
            shown_at = time.monotonic()
    if platform.has_worked and platform.parent_run is not None:
        metrics = results[plan.steps[-1].name].metrics
        platform.parent_run.log_metrics({f"result/{name}": metrics[name] for name in metrics}, 0)
    return {step.name: results[step.name] for step in plan.steps}


def check_trained_rows(
    name: str, result: StageResult, steps: Sequence[Step], platform: Platform
) -> None:
    """Raises `ConfigError` for rows, a step's result, that a later step cannot train on.

    Before that one there may be hours of other trainings.
    """
    readers = (step for step in steps if step.inputs.get("data") == name)
    configs = [step.config for step in readers if isinstance(step.config, LoopConfig)]
    if not configs:
        return
    folder = platform.store.folder(result.address, result.digest)
    probes = list(read_rows(folder / "probes.jsonl", ProbeRow))
    for config in configs:
        check_probes(config, probes)
        if isinstance(config, TrainConfig):
            check_rows(read_rows(folder / "train.jsonl", Example), config.objective)


def check_hosts(steps: Sequence[Step], settings: Settings) -> None:
    """Raises `ConfigError` for a training whose ranks do not divide evenly among the hosts, or are
    more than a host's GPUs."""
    devices = host_devices()
    for step in steps:
        engine = getattr(step.config, "engine", None)
        if isinstance(engine, EngineConfig) and engine.kind == "deepspeed":
            field = f"{step.name}.engine.ranks"
            here = ranks_per_host(field, engine.ranks, settings.hosts)
            if devices:
                check_enough(field, here, devices)


def _as_task(
    step: Step,
    results: Mapping[str, StageResult],
    platform: Platform,
    *,
    compared: bool,
    fresh: bool,
) -> StageResult:
    """`compared`: whether steps of the plan are, and so their runs by name."""

    # Prefect's own cache and results are off: only the store's committed manifest counts.
    @prefect.task(name=step.name, cache_policy=NO_CACHE, persist_result=False)
    def stage() -> Any:
        sources = step.sources(results)
        try:
            done = run_stage(
                step.stage,
                step.config,
                sources,
                platform,
                name=step.name,
                compared_by=step.compared_by if compared else None,
                fresh=fresh,
            )
        except Pruned as pruned:
            return Completed(name="Pruned", message=str(pruned), data=pruned)
        if not done.cached:
            return done
        return Completed(name="Cached", message=f"committed at {done.address}", data=done)

    # Prefect passes a returned state on unchanged; its result is what other stages read.
    result = cast(State[StageResult | Pruned], stage(return_state=True)).result()
    if isinstance(result, Pruned):
        raise result
    return result


def page_name(name: str) -> str:
    """Name of a page's copy that no other run of the study replaces: with Prefect's run's own."""
    title = run_title(name)
    return name if title == name else slug(title)


def copy_page(
    flow: StagedFlow[Any], name: str, results: Mapping[str, StageResult], platform: Platform
) -> None:
    """Copies a finished run's page, with the files that its reader needs beside it."""
    result, page = results[flow.page], flow.page_in(platform.settings.reports, name)
    folder = platform.store.folder(result.address, result.digest)
    write_aside(page, partial(shutil.copyfile, folder / flow.file))
    for beside in flow.beside:
        copy = page.with_name(f"{name}-{beside}")
        if (folder / beside).exists():
            write_aside(copy, partial(shutil.copyfile, folder / beside))
        else:
            copy.unlink(missing_ok=True)


def lead_on(
    flow: StagedFlow[Any],
    name: str,
    files: str,
    results: Mapping[str, StageResult],
    trainings: Sequence[str],
    compared: Sequence[str],
    platform: Platform,
) -> None:
    """Leads on from a finished run: to its page in MLflow, from its run there and in Prefect.

    Prefect's run has the answer, the files and the next command, too.

    `files`: name of the page's copy. `trainings`: the steps that the run's charts show.
    `compared`: those with one row each in MLflow's table of arms.
    """
    made_by, links = results[flow.page].mlflow_run_id, {}
    study = platform.parent_run if platform.has_worked else None
    if made_by is not None and flow.file.endswith(".html"):
        artifact, experiment = f"{PAGE_FOLDER}/{flow.file}", "0"
        if study:
            made = {step: run for step, done in results.items() if (run := done.mlflow_run_id)}
            runs, arms = (
                [made[step] for step in names if step in made] for names in (trainings, compared)
            )
            columns = [
                name.removeprefix("heldout/")
                for step in compared[:1]
                for name in results[step].metrics
                if name.startswith(("heldout/pass_at", "heldout/entropy", "heldout/right_change"))
            ]
            study.describe(
                runs if trainings else None,
                page=(made_by, artifact),
                arms=arms,
                arms_metrics=columns[:COLUMNS_OF_ARMS],
            )
            if study.run:
                experiment = study.run.experiment_id
                if arms:
                    links[f"Arms of {name}"] = f"{study.server}/{arms_page(study.run)}"
        server = study.server if study else platform.settings.mlflow_tracking_uri
        if server is not None:
            # MLflow finds a run by its id alone; only the frame of the page is the experiment's.
            page = run_page(Run(made_by, experiment, ""), artifact)
            links[f"Report of {name}"] = f"{server.rstrip('/')}/{page}"
    commands = [f"{kind}: `{command}`" for kind, command in next_commands(flow, files, results)]
    lines = [*_as_markdown(answer_of(platform.store, results[flow.page])), *commands]
    publish_links(SUMMARY, name, links, lines, study, charts=bool(trainings), seconds=CLOSE_SECONDS)


def answer_of(store: Store, page: StageResult) -> list[str]:
    """The sentences that a page begins with, if it has an answer."""
    from dynolab.report.page import ANSWER  # plotly takes a while to import

    file = store.folder(page.address, page.digest) / ANSWER
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return text.removesuffix("\n").split("\n") if text else []


def _as_markdown(answer: Sequence[str]) -> Iterator[str]:
    """Sentences as they are, and lines of a table, which have gaps between columns, as aligned."""
    for aligned, lines in groupby(answer, lambda line: "  " in line):
        if aligned:
            yield "\n".join(["~~~~", *lines, "~~~~"])
        else:
            yield from map(literal, lines)


def next_commands(
    flow: StagedFlow[Any], name: str, results: Mapping[str, StageResult]
) -> Iterator[tuple[str, str]]:
    """What gets a finished run's files, and what to do next: kind and command."""
    yield "files", f"{invocation()} path {results.get('preference', results[flow.page]).short}"
    page = flow.page_in(Settings.from_environment().reports, name)
    if page.with_name(f"{name}-{REMEDIES}").exists() and REMEDIES in flow.beside:
        yield "next", remedies_command(name)


def write_early_page(
    flow: StagedFlow[Any], plan: Plan, results: Mapping[str, StageResult], platform: Platform
) -> None:
    """Writes the page of the results so far; a page that cannot be made yet is only logged."""
    try:
        if content := plan.early(results, platform) if plan.early else "":
            page = flow.page_in(platform.settings.reports, plan.parameters.name)
            for end, text in plan.beside.items():
                write_text_aside(page.with_name(f"{plan.parameters.name}-{end}"), text)
            write_text_aside(page, content)
    except Exception:  # the run is worth more than its early page
        log.warning("cannot write the page of the results so far", exc_info=True)


def register_model(run: RunTracker, name: str, result: StageResult) -> None:
    """Register a result's model under `name`, as soon as MLflow can be reached."""
    tags = {
        "stage": result.stage,
        "stage_key": result.key,
        ADDRESS_TAG: result.address,
        DIGEST_TAG: result.digest,
    }
    run.register_model(name, model_source(result.address), tags, result.mlflow_run_id)


def model_source(address: str) -> str:
    """Address of the model's files; for a local store `dynolab:/` and the path in the store.

    MLflow accepts no local folder outside a run's own artifacts
    (mlflow.server.handlers._validate_source_run).
    """
    if urlsplit(address).scheme != "file":
        return f"{address}/model"
    return f"dynolab:/{address[address.rindex('stages/') :]}/model"
