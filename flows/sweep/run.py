"""Runs the trials of a sweep, each under an MLflow run of its own."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dynolab.data.rows import read_rows
from dynolab.errors import ConfigError, DynolabError, Pruned, check_known
from dynolab.grouping import grouped
from dynolab.results.study import MetricsLine
from dynolab.results.sweep import TrialState
from dynolab.store import Claim
from flows.parameters.parse import as_change, load_parameters
from flows.registry import FLOWS, load_flow
from flows.sweep.page import report, show_trials
from flows.sweep.parameters import SweepParameters
from flows.sweep.trials import MEASURED, RUN_ID, SweepStudy, short, study_name
from tasks.runtime.open_platform import open_platform, planning_platform
from tasks.runtime.stage import Platform
from tasks.runtime.track.runs import STUDY_RUN_TAG, shown_params
from tasks.runtime.training_monitor import watched_by
from tasks.runtime.work import StageResult

if TYPE_CHECKING:
    import optuna

log = logging.getLogger(__name__)

PATH_POINTS = 100

LOGP = "probe/chosen/logp"

BESIDE = (LOGP, "probe/rejected/logp", "squeeze/gap", "train/margin")
"""Metrics that are shown beside those of the sweep."""

RUN_CREATION_SECONDS = 30.0

# Names of a training's metrics. It only guards against misspellings: which of those that begin with
# train/ exist, the training alone knows.
_METRIC = re.compile(
    r"(train|rollout|data)/.+|squeeze/(gap|rise)|probe/([^/]+/(logp(_per_token)?|outside_mass)|seconds)"
)


def check_sweep(parameters: SweepParameters) -> None:
    """Raises `ConfigError`, before any trial, for an unknown flow, step, metric or setting.

    Checks each value of a setting together with the first values of the others.
    """
    check_known("flow", parameters.flow, [name for name in FLOWS if name != "sweep"])
    first_values = {
        name: dimension.low if dimension.values is None else dimension.values[0]
        for name, dimension in parameters.space.items()
    }
    for name, dimension in parameters.space.items():
        for value in dimension.values or dimension.ends:
            flow, settings = trial_of(parameters, first_values | {name: value})
        if dimension.values is None and not dimension.integer:
            low, high = dimension.ends
            drawn = low + (high - low) / math.pi  # as a draw is, no whole number
            try:
                trial_of(parameters, first_values | {name: drawn})
            except ConfigError as error:
                remedy = (
                    f"draws numbers such as {drawn:.4g} ({error.remedy}); for whole numbers add "
                )
                raise ConfigError(f"space.{name}", [low, high], f"{remedy}integer: true") from error
    # Of the last of these trials: all of them have the same steps.
    steps = [step.name for step in flow.plan(settings, planning_platform()).steps]
    check_known("stage", parameters.stage, steps)
    for metric in parameters.objectives:
        if parameters.stage in ("sft", "preference") and not _METRIC.fullmatch(metric):
            raise ConfigError(
                "metric",
                metric,
                "no training has it; choose train/margin, "
                "probe/chosen/logp, squeeze/gap or another that MLflow shows of a training",
            )


def trial_of(parameters: SweepParameters, point: Mapping[str, Any]) -> tuple[Any, Any]:
    """The flow of a trial, and its parameters with the values of a `point` of the space.

    **Raises** `ConfigError` for settings that cannot work.
    """
    changes = [as_change(setting, value) for setting, value in point.items()]
    flow = load_flow(parameters.flow)
    return flow, load_parameters(
        flow.parameters, parameters.study_path, [*parameters.settings, *changes]
    )


def sweep(parameters: SweepParameters) -> dict[str, Any]:
    """Runs the trials of a sweep that no process has begun, or whose process died.

    Returns the trials as rows.
    """
    check_sweep(parameters)
    study = SweepStudy(parameters)
    with open_platform(
        study=parameters.name,
        project=parameters.project,
        tags={"kind": "sweep", "flow": "sweep", "sweep": parameters.name},
        params=shown_params(parameters),
        settings_yaml=parameters.as_yaml,
        charts=True,
    ) as platform:
        run_trials(study, platform)
        return report(study, platform)


def run_trials(study: SweepStudy, platform: Platform) -> None:
    """Runs trials one by one: those whose process died, then new ones.

    An error fails its trial alone. An interruption ends the sweep; its next process takes the trial
    up again.

    **Raises** `ConfigError` if the study file changed after the sweep began.
    """
    abandoned = study.unfinished()  # or running in another process, which then holds the claim
    while (trial := abandoned.pop(0) if abandoned else study.ask()) is not None:
        with Claim(platform.store.files, f"sweeps/{study.name}/{trial.number}") as claim:
            # Another process runs this trial, or has ended it since it was listed.
            if (holder := claim.acquire_or_holder()) or study.has_ended(trial):
                log.info("trial %d: left to %s", trial.number, holder or "its process")
                continue
            if study_name(study.parameters) != study.name:
                raise ConfigError(
                    "study",
                    study.parameters.study,
                    "changed after the sweep began; start the sweep again",
                )
            show_trials(study, platform)
            _run_trial(study, trial, platform)


def _run_trial(study: SweepStudy, trial: optuna.Trial, platform: Platform) -> None:
    """Runs a trial's stages under an MLflow run of its own, and records its end."""
    sweep, point = study.parameters, trial.params
    try:
        flow, settings = trial_of(sweep, point)
    except ConfigError as error:
        log.warning("trial %d failed: %s", trial.number, error)
        study.end(trial, "failed")
        return
    settings_text = ", ".join(
        f"{shown} = {short(point[name])}" for name, shown in sweep.tried.items()
    )
    # The stages' runs get this trial's run, which is opened next, as their parent.
    trial_platform = replace(
        platform, open_tracking=lambda: platform.tracking, open_parent_run=lambda _: run
    )
    # Opened here and not by the first stage that computes (which `open_parent_run` gives it): the
    # run gets metrics also if every stage is cached.
    run = trial_platform.tracking.start_run(
        f"{settings_text} ({sweep.name} {trial.number})"[:120],
        parent=platform.parent_run,
        params=shown_params(settings) | point,
        settings_yaml=settings.as_yaml,
        tags={
            "kind": "trial",
            "flow": "trial",
            "sweep": sweep.name,
            "trial": str(trial.number),
            STUDY_RUN_TAG: f"{study.name}/{trial.number}",
        },
        resume_by=STUDY_RUN_TAG,
    )

    def watch(stage: str, line: MetricsLine) -> None:
        # Only lines of the step that has the metric, at the steps at which it is checked.
        value = line.metrics.get(sweep.metric)
        if sweep.prune is None or stage != sweep.stage or line.step % sweep.prune.every:
            return
        if value is None or not math.isfinite(value):
            return
        trial.report(value, line.step)
        if trial.should_prune():
            raise Pruned(stage, line.step, sweep.metric, value)

    state: TrialState = "failed"  # until it is known to be another
    values: dict[str, float] | None = None
    try:
        from flows.run import run_on

        with watched_by(watch):
            # `trained`: the trial's run gets this step's metrics, too.
            planned = replace(flow.plan(settings, planning_platform()), trained=sweep.stage)
            results = run_on(trial_platform, planned, fresh=False)
        paths = metric_paths(sweep, results, platform)
        values = {name: path[-1][1] for name, path in paths.items()}
        result_metrics = results[sweep.stage].metrics  # the others are logged at every step
        run.log_metrics(
            {name: values[name] for name in sweep.objectives if name in result_metrics}, 0
        )
        trial.set_user_attr(MEASURED, _measured(sweep, paths))
        run.wait_created(RUN_CREATION_SECONDS)
        state = "complete"
    except UnknownMetric:  # no trial has it: the sweep ends
        run.finish("FAILED")
        study.end(trial, state)
        raise
    except Pruned as pruned:
        log.info("trial %d: %s", trial.number, pruned)
        state = "pruned"
    except Exception as error:
        expected = isinstance(error, DynolabError)
        log.warning("trial %d failed: %s", trial.number, error, exc_info=not expected)
    except BaseException:  # an interruption: the trial's end is not recorded, so it is run again
        run.finish("KILLED")
        raise
    trial.set_user_attr(RUN_ID, run.run_id)
    study.end(trial, state, values)
    run.set_tags({"trial.state": state})
    run.finish("FAILED" if state == "failed" else "FINISHED")


class UnknownMetric(ConfigError):
    """The sweep's step has no metric of this name."""


def metric_paths(
    sweep: SweepParameters, results: Mapping[str, StageResult], platform: Platform
) -> dict[str, list[tuple[int, float]]]:
    """Metrics of the sweep's step → steps and values; those of its result have one, at step 0.

    **Raises** `UnknownMetric` without a metric of the sweep, and `ConfigError` unless their last
    values are finite numbers.
    """
    result = results[sweep.stage]
    paths = {name: [(0, value)] for name, value in result.metrics.items()}
    if "metrics.jsonl" in platform.store.manifest(result.address, result.digest).files:
        folder = platform.store.folder(result.address, result.digest)
        paths |= grouped(
            (name, (line.step, value))
            for line in read_rows(folder / "metrics.jsonl", MetricsLine)
            for name, value in line.metrics.items()
        )
    for metric in sweep.objectives:
        if metric not in paths:
            choices = ", ".join(sorted(paths)) or "none"
            raise UnknownMetric("metric", metric, f"choose a metric of {sweep.stage}: {choices}")
        if not math.isfinite(paths[metric][-1][1]):
            raise ConfigError("metric", metric, "is not finite at the end; lower the learning rate")
    return paths


def _measured(
    sweep: SweepParameters, paths: Mapping[str, list[tuple[int, float]]]
) -> dict[str, dict[str, Any]]:
    """What the sweep's page shows of a trial: last values of some metrics, and two paths."""
    # The sweep's metrics and those beside them, each once.
    shown = [name for name in dict.fromkeys((*sweep.objectives, *BESIDE)) if name in paths]
    thinned = {}  # metric → at most `PATH_POINTS` of its points
    # The chosen answer's log-probability is drawn, too, unless a metric is one already.
    has_logp = any(name.startswith(LOGP) for name in sweep.objectives)
    for name in (*sweep.objectives, *([] if has_logp else [LOGP])):
        finite = [point for point in paths.get(name, ()) if math.isfinite(point[1])]
        if len(finite) > 1:
            # Every n-th point, counted from the last, which is always among them; in their order.
            thinned[name] = finite[:: -math.ceil(len(finite) / PATH_POINTS)][::-1]
    last = {name: paths[name][-1][1] for name in shown}
    return {
        "values": {name: last[name] for name in last if math.isfinite(last[name])},
        "paths": thinned,
    }
