"""Runs a flow's stages as Prefect tasks on one platform, under one MLflow parent run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import prefect
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed, State

from dynolab.errors import Pruned
from dynolab.training.config import EngineConfig, LoopConfig
from flows.flow import Flow, Parameters, Plan, Results, StagedFlow
from flows.pages import copy_page, lead_to_page, write_early_page
from flows.registry import FLOWS
from tasks.runtime.launch.rendezvous import Rendezvous
from tasks.runtime.mlflow_models import register_model
from tasks.runtime.open_platform import open_platform, planning_platform
from tasks.runtime.pipeline import Step
from tasks.runtime.stage import Platform, run_stage
from tasks.runtime.system.settings import Settings
from tasks.runtime.work import StageResult


def as_prefect_flow(flow: Flow[Any]) -> prefect.Flow[..., Any]:
    """Wraps a flow as a Prefect flow with arguments `parameters` and `fresh`."""

    def run(parameters: Any, fresh: bool = False) -> Any:
        return run_flow(flow, parameters, fresh=fresh)

    run.__doc__ = FLOWS[flow.name]
    return prefect.flow(name=flow.name, flow_run_name="{parameters.name}")(run)


def run_flow(flow: Flow[Parameters], parameters: Parameters, *, fresh: bool = False) -> Any:
    """Runs a flow inside a Prefect flow run; `fresh` computes every stage again."""
    if not isinstance(flow, StagedFlow):
        assert flow.body is not None, "a flow has stages or a body"
        return flow.body(parameters)
    plan = flow.plan(parameters, planning_platform())
    return run_plan(flow.name, plan, fresh=fresh, pages=flow)


def run_plan(
    flow: str, plan: Plan, *, fresh: bool, pages: StagedFlow[Any] | None = None
) -> Results:
    """Runs a flow's steps in order; returns their results as plain data.

    `pages`: the flow whose page the home's `reports` get, also while it fills.

    In MLflow the parent run holds the parameters and the last step's metrics, so that studies can
    be compared by their parent runs. A step whose result is committed ends in state `Cached`. Tasks
    are called, not submitted, so that cancelling the flow run signals the training in it.
    """
    parameters = plan.parameters
    trainings = [step.name for step in plan.steps if isinstance(step.config, LoopConfig)]
    with open_platform(
        study=parameters.name,
        project=parameters.project,
        tags={"flow": flow, **plan.tags},
        params=parameters.model_dump(mode="json"),
        charts=bool(trainings),
    ) as platform:
        shown = None if pages is None else partial(write_early_page, pages, plan, platform=platform)
        results = run_on(platform, plan, fresh=fresh, shown=shown)
        if pages is not None:
            copy_page(pages, parameters.name, results, platform)
            lead_to_page(pages, parameters.name, results, trainings, platform)
        if plan.trained is not None and platform.has_worked and platform.study is not None:
            model = f"{parameters.project}-{parameters.name}"
            register_model(platform.study, model, results[plan.trained])
    return {name: result.model_dump(mode="json") for name, result in results.items()}


def run_on(
    platform: Platform,
    plan: Plan,
    *,
    fresh: bool,
    shown: Callable[[Mapping[str, StageResult]], None] | None = None,
) -> dict[str, StageResult]:
    """Runs the steps in order on an open platform; returns their results.

    `shown` is given the results so far whenever one was computed, but for the last.

    **Raises** `ConfigError` before the first step if a training's ranks do not divide among hosts.
    """
    check_hosts(plan.steps, platform.settings)
    results = dict(plan.existing)
    for step in plan.steps:
        results[step.name] = _as_task(step, results, platform, fresh=fresh)
        if shown is not None and step is not plan.steps[-1] and not results[step.name].cached:
            shown(results)
    if platform.has_worked and platform.study is not None:
        platform.study.log_metrics(results[plan.steps[-1].name].metrics, 0)
    return {step.name: results[step.name] for step in plan.steps}


def check_hosts(steps: Sequence[Step], settings: Settings) -> None:
    """Raises `ConfigError` for a training whose ranks do not divide evenly among the hosts."""
    rendezvous = Rendezvous.of(settings)
    for step in steps:
        engine = getattr(step.config, "engine", None)
        if rendezvous and isinstance(engine, EngineConfig) and engine.kind == "deepspeed":
            rendezvous.ranks_each(f"{step.name}.engine.ranks", engine.ranks)


def _as_task(
    step: Step, results: Mapping[str, StageResult], platform: Platform, *, fresh: bool
) -> StageResult:
    # Prefect's own cache and results are off: only the store's committed manifest counts.
    @task(name=step.name, cache_policy=NO_CACHE, persist_result=False)
    def stage() -> Any:
        sources = step.sources(results)
        try:
            done = run_stage(
                step.stage, step.config, sources, platform, fresh=fresh, name=step.name
            )
        except Pruned as pruned:
            return Completed(name="Pruned", message=str(pruned), data=pruned)
        if not done.cached:
            return done
        return Completed(name="Cached", message=f"committed at {done.address}", data=done)

    # Prefect passes a returned state on unchanged; its result is what other stages read.
    state = cast(State[StageResult | Pruned], stage(return_state=True))
    result = state.result()
    if isinstance(result, Pruned):
        raise result
    return result
