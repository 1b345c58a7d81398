"""Starts a sweep's trials: on workers if any is alive, else in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from dynolab.errors import DynolabError
from flows.parameters import as_change
from flows.sweep.memory import SweepStudy
from flows.sweep.parameters import SweepParameters
from flows.sweep.trial import TrialParameters, run_trial
from tasks.runtime.keys import canonical
from tasks.runtime.stage import Platform

if TYPE_CHECKING:
    from tasks.runtime.track.runs import Status

log = logging.getLogger(__name__)

DEPLOYMENT = "trial/~internal-trial"
POOL = "training"
WORKER_IS_ALIVE = timedelta(seconds=90)
RUN_CREATION_SECONDS = 30.0


@dataclass(frozen=True)
class Started:
    """A started trial: whether its process has ended, and how to cancel it."""

    ended: Callable[[], bool]
    cancel: Callable[[], None]


Launch = Callable[[SweepStudy, int], Started]
"""Starts a trial."""


def choose_launch(parameters: SweepParameters, platform: Platform) -> Launch:
    """Chooses workers if one of the training pool is alive, else this process, one by one."""
    run = platform.study
    assert run is not None
    run.wait_created(RUN_CREATION_SECONDS)
    if has_live_worker():
        return _by_workers(run.run_id)
    return _in_process(platform)


def has_live_worker() -> bool:
    """Whether Prefect's server has the deployment of trials and a live worker for it."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
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
    changes = tuple(as_change(key, value) for key, value in study.settings(number).items())
    return TrialParameters(
        sweep=study.parameters,
        memory=study.name,
        number=number,
        changes=changes,
        parent_run=parent_run,
    )


def _by_workers(parent_run: str | None) -> Launch:
    def launch(study: SweepStudy, number: int) -> Started:
        from prefect.deployments import run_deployment

        attempt = _attempt(study, number)
        settings = _settings(study, number, parent_run)
        run: Any = run_deployment(
            DEPLOYMENT,
            parameters={"parameters": settings.model_dump(mode="json")},
            flow_run_name=settings.name,
            idempotency_key=_key(study, number, attempt),
            timeout=0,
        )
        return Started(lambda: _is_final(run.id), lambda: _cancel(run.id))

    return launch


def _attempt(study: SweepStudy, number: int) -> int:
    """The attempt that a dead sweep started, if it has not ended, else a new one."""
    previous = study.attempts(number)
    if previous and not _attempt_ended(study, number, previous):
        return previous
    return study.started(number)


def _attempt_ended(study: SweepStudy, number: int, attempt: int) -> bool:
    """Whether all flow runs of an attempt have ended; False if there are none."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey

    key = _key(study, number, attempt)
    runs_of_attempt = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=[key]))
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_run_filter=runs_of_attempt)
    return bool(runs) and all(run.state is None or run.state.is_final() for run in runs)


def _key(study: SweepStudy, number: int, attempt: int) -> str:
    return f"{study.name}/{number}/{attempt}"


def _is_final(run: UUID) -> bool:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run).state
    return state is not None and state.is_final()


def _cancel(run: UUID) -> None:
    from prefect.client.orchestration import get_client
    from prefect.states import Cancelling

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
            study.fail(number)
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
