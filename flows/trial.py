"""One trial of a sweep: a flow's stages with the trial's settings, under the sweep's run.

Trials run on workers if any is alive, else one by one in the sweep's process.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import prefect
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling, Completed
from pydantic import BaseModel, ConfigDict

from dynolab.data.rows import read_rows
from dynolab.errors import ConfigError, DynolabError, Pruned
from dynolab.results.study import MetricsLine
from flows.flow import StagedFlow
from flows.parameters import as_change, load_parameters
from flows.registry import load_flow
from flows.run import run_on
from flows.sweep import Launch, Started, SweepParameters, SweepStudy, study_name
from tasks.runtime.keys import canonical
from tasks.runtime.open_platform import open_platform, planning_platform
from tasks.runtime.stage import Platform
from tasks.runtime.track.tail import MetricLine, watched_by
from tasks.runtime.work import StageResult

if TYPE_CHECKING:
    from tasks.runtime.track.runs import Status

log = logging.getLogger(__name__)

DEPLOYMENT, POOL = "trial/~internal-trial", "training"
WORKER_IS_ALIVE = timedelta(seconds=90)
RUN_CREATION_SECONDS = 30.0


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
        study.end(parameters.number, "complete", values[sweep.metric], run.run_id)
    except Pruned as pruned:
        run.set_tags({"trial.state": "pruned"})
        study.end(parameters.number, "pruned", run=run.run_id)
        return Completed(name="Pruned", message=str(pruned))
    except Exception:
        study.end(parameters.number, "failed", run=run.run_id)
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


def choose_launch(platform: Platform) -> Launch:
    """Chooses workers if one of the training pool is alive, else this process, one by one."""
    run = platform.study
    assert run is not None
    run.wait_created(RUN_CREATION_SECONDS)
    with get_client(sync_client=True) as client:
        return _by_workers(run.run_id) if has_live_worker(client) else _in_process(platform)


def has_live_worker(client: SyncPrefectClient) -> bool:
    """Whether Prefect's server has the deployment of trials and a live worker for it."""
    try:
        client.read_deployment_by_name(DEPLOYMENT)
        workers = client.read_workers_for_work_pool(POOL)
    except ObjectNotFound:
        return False
    since = datetime.now(UTC) - WORKER_IS_ALIVE
    return any(
        worker.last_heartbeat_time and worker.last_heartbeat_time > since for worker in workers
    )


def _settings(study: SweepStudy, number: int, parent_run: str | None = None) -> TrialParameters:
    return TrialParameters(
        sweep=study.parameters,
        memory=study.name,
        number=number,
        changes=tuple(as_change(key, value) for key, value in study.settings(number).items()),
        parent_run=parent_run,
    )


def _by_workers(parent_run: str | None) -> Launch:
    """Starts flow runs. One that a dead sweep started is taken up by its idempotency key."""

    def launch(study: SweepStudy, number: int) -> Started:
        attempt = study.attempts(number)
        if not attempt or _has_ended(f"{study.name}/{number}/{attempt}"):
            attempt = study.started(number)
        settings = _settings(study, number, parent_run)
        run: Any = run_deployment(
            DEPLOYMENT,
            parameters={"parameters": settings.model_dump(mode="json")},
            flow_run_name=settings.name,
            idempotency_key=f"{study.name}/{number}/{attempt}",
            timeout=0,
        )
        return Started(lambda: _is_final(run.id), lambda: _cancel(run.id))

    return launch


def _has_ended(key: str) -> bool:
    """Whether all flow runs with an idempotency key have ended; False if there are none."""
    of_key = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=[key]))
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_run_filter=of_key)
    return bool(runs) and all(run.state is None or run.state.is_final() for run in runs)


def _is_final(run: UUID) -> bool:
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run).state
    return state is not None and state.is_final()


def _cancel(run: UUID) -> None:
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run, Cancelling())


def _in_process(platform: Platform) -> Launch:
    """A launch that runs each trial to its end in this process; an error fails only that trial."""

    def launch(study: SweepStudy, number: int) -> Started:
        study.started(number)
        try:
            _run_trial_in_process(_settings(study, number), platform)
        except Exception as error:
            expected = isinstance(error, DynolabError)
            log.warning("trial %d failed: %s", number, error, exc_info=not expected)
            study.end(number, "failed")
        return Started(lambda: True, lambda: None)

    return launch


def _run_trial_in_process(settings: TrialParameters, platform: Platform) -> None:
    """Runs a trial in this process, with its own MLflow run under the sweep's."""
    run = platform.tracking.start_run(
        settings.name,
        parent=platform.study,
        params=canonical(settings.settings),
        tags={"flow": "trial", "sweep": settings.sweep.name, "trial": str(settings.number)},
    )
    trial_platform = Platform(
        platform.settings,
        platform.store,
        lambda: platform.tracking,
        platform.progress,
        open_study=lambda tracking: run,
    )
    status: Status = "KILLED"
    try:
        run_trial(settings, trial_platform)
        status = "FINISHED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        run.finish(status)
