"""One trial of a sweep: a flow's stages with the trial's settings, under the sweep's run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import prefect
from prefect.states import Completed
from pydantic import BaseModel, ConfigDict

from dynolab.data.rows import read_rows
from dynolab.errors import ConfigError, Pruned
from dynolab.results.study import MetricsLine
from flows.flow import StagedFlow
from flows.parameters import load_parameters
from flows.registry import load_flow
from flows.run import run_on
from flows.sweep.memory import SweepStudy, study_name
from flows.sweep.parameters import SweepParameters
from tasks.runtime.keys import canonical
from tasks.runtime.open_platform import open_platform, planning_platform
from tasks.runtime.stage import Platform
from tasks.runtime.track.tail import MetricLine, watched_by
from tasks.runtime.work import StageResult

RUN_CREATION_SECONDS = 10.0


class TrialParameters(BaseModel):
    """Which trial of which sweep."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    sweep: SweepParameters
    memory: str
    """The sweep's name in its database, with a digest of the study file when the sweep began."""

    number: int
    changes: tuple[str, ...]
    """The trial's settings, as key=value."""

    parent_run: str | None = None
    """The sweep's run in MLflow."""

    @property
    def settings(self) -> BaseModel:
        """The parameters of the flow that the trial runs."""
        changes = [*self.sweep.settings, *self.changes]
        kind: type[BaseModel] = load_flow(self.sweep.flow).parameters
        return load_parameters(kind, self.sweep.study_path, changes)

    @property
    def name(self) -> str:
        """The title of the trial's runs: the sweep's name, the trial's number and settings."""
        pairs = [change.partition("=") for change in self.changes]
        settings = ", ".join(f"{name.rpartition('.')[2]} = {value}" for name, _, value in pairs)
        return f"{self.sweep.name} {self.number}: {settings}"[:120]


@prefect.flow(name="trial", flow_run_name="{parameters.name}")
def trial(parameters: TrialParameters) -> Any:
    """Runs the trial and records how it ended; pruning is not a failure."""
    tags = {"flow": "trial", "sweep": parameters.sweep.name, "trial": str(parameters.number)}
    if parameters.parent_run:
        tags["mlflow.parentRunId"] = parameters.parent_run
    with open_platform(
        study=parameters.name,
        project=parameters.sweep.project,
        tags=tags,
        params=canonical(parameters.settings),
    ) as platform:
        return run_trial(parameters, platform)


def run_trial(parameters: TrialParameters, platform: Platform) -> Any:
    """Runs the trial's stages on a platform whose study is the trial's run.

    **Raises** `ConfigError` if the study file changed after the sweep began.
    """
    sweep = parameters.sweep
    if study_name(sweep) != parameters.memory:
        raise ConfigError(
            "study", sweep.study, "changed after the sweep began; start the sweep again"
        )
    study = SweepStudy(sweep)
    flow, run = load_flow(sweep.flow), platform.study
    assert isinstance(flow, StagedFlow), "check_sweep rejects a sweep of sweeps"
    assert run is not None

    def watch(stage: str, line: MetricLine) -> None:
        value = line.metrics.get(sweep.metric)
        if sweep.prune is None or stage != sweep.stage or line.step % sweep.prune.every:
            return
        if value is None or not math.isfinite(value):
            return
        if study.is_hopeless(parameters.number, line.step, value):
            raise Pruned(stage, line.step, sweep.metric, value)

    try:
        plan = flow.plan(parameters.settings, planning_platform())
        with watched_by(watch):
            results = run_on(platform, plan, fresh=False)
        values = final_metrics(sweep.stage, results, platform)
        if sweep.metric not in values:
            metrics = ", ".join(sorted(values)) or "none"
            raise ConfigError(
                "metric", sweep.metric, f"choose a metric of {sweep.stage}: {metrics}"
            )
        if not math.isfinite(values[sweep.metric]):
            raise ConfigError(
                "metric", sweep.metric, "is not finite at the end; lower the learning rate"
            )
        run.log_metrics(values, 0)
        run.wait_created(RUN_CREATION_SECONDS)
        study.note_run(parameters.number, run.run_id)
        study.complete(parameters.number, values[sweep.metric])
    except Pruned as pruned:
        run.set_tags({"trial.state": "pruned"})
        study.note_run(parameters.number, run.run_id)
        study.prune(parameters.number)
        return Completed(name="Pruned", message=str(pruned))
    except Exception:
        study.note_run(parameters.number, run.run_id)
        study.fail(parameters.number)
        raise
    run.set_tags({"trial.state": "complete"})
    return {name: result.model_dump(mode="json") for name, result in results.items()}


def final_metrics(
    step: str, results: Mapping[str, StageResult], platform: Platform
) -> dict[str, float]:
    """A step's metrics, with the last value of every metric that it logged while training."""
    if step not in results:
        raise ConfigError("stage", step, f"choose a step of the flow: {', '.join(results)}")
    result = results[step]
    values = dict(result.metrics)
    if "metrics.jsonl" in platform.store.manifest(result.address, result.digest).files:
        folder: Path = platform.store.folder(result.address, result.digest)
        for line in read_rows(folder / "metrics.jsonl", MetricsLine):
            values |= line.metrics
    return values
