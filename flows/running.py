"""Runs a flow's stages: each a Prefect task, all on one platform, under one MLflow parent run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed, State

from dynolab.errors import Pruned
from dynolab.training.config import EngineConfig
from tasks.runtime.chain import Step
from tasks.runtime.launch.rendezvous import Rendezvous
from tasks.runtime.models import register_model
from tasks.runtime.opening import open_platform
from tasks.runtime.stage import Platform, run_stage
from tasks.runtime.system.settings import Settings
from tasks.runtime.work import StageResult


def run_steps(
    steps: Sequence[Step],
    *,
    study: str,
    project: str,
    tags: Mapping[str, str],
    params: Mapping[str, Any],
    fresh: bool,
    given: Mapping[str, StageResult] | None = None,
    trained: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Runs the steps in order; returns their results as plain data.

    In MLflow the parent run holds `params` and the last step's numbers, so that studies can be
    compared by it alone. `given` are results that are there without a step, under the names that
    steps read them by; `trained` is the step whose model is what came of it all, which MLflow then
    lists among its models.

    A step whose result is committed ends in state `Cached`. Tasks are called, not submitted: a
    cancelled flow run's signal then reaches the training that it must end.
    """
    with open_platform(study=study, project=project, tags=tags, params=params) as platform:
        results = run_on(platform, steps, given=given, fresh=fresh)
        if trained is not None and platform.has_worked and platform.study is not None:
            register_model(platform.study, f"{project}-{study}", results[trained])
    return {name: result.model_dump(mode="json") for name, result in results.items()}


def run_on(
    platform: Platform,
    steps: Sequence[Step],
    *,
    given: Mapping[str, StageResult] | None = None,
    fresh: bool,
) -> dict[str, StageResult]:
    """Runs the steps in order on a platform that is open; returns their results.

    Raises ConfigError before the first where a training's ranks cannot be shared out to hosts.
    """
    check_hosts(steps, platform.settings)
    results = dict(given or {})
    for step in steps:
        results[step.name] = _as_task(step, results, platform, fresh=fresh)
    if platform.has_worked and platform.study is not None:
        platform.study.metrics(0, results[steps[-1].name].metrics)
    return {step.name: results[step.name] for step in steps}


def check_hosts(steps: Sequence[Step], settings: Settings) -> None:
    """Refuses, before anything runs, a training that the hosts cannot share evenly."""
    rendezvous = Rendezvous.of(settings)
    for step in steps:
        engine = getattr(step.config, "engine", None)
        if rendezvous and isinstance(engine, EngineConfig) and engine.kind == "deepspeed":
            rendezvous.ranks_each(f"{step.name}.engine.ranks", engine.ranks)


def _as_task(
    step: Step, results: Mapping[str, StageResult], platform: Platform, *, fresh: bool
) -> StageResult:
    # Prefect's own cache and results stay off: the store's committed manifest alone decides.
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

    # A returned state is handed through as it is; its result is what other stages read.
    state = cast(State[StageResult | Pruned], stage(return_state=True))
    result = state.result()
    if isinstance(result, Pruned):
        raise result
    return result
