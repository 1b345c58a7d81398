"""Cleans up after dead processes: kills orphans, sends runs to MLflow, closes MLflow runs."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import StateType

from dynolab.store.owner import is_dead
from tasks.runtime.launch.launcher import OWNER_VARIABLE
from tasks.runtime.system.processes import kill_marked, variable_of_all
from tasks.runtime.track.prefect_progress import FLOW_RUN_TAG
from tasks.runtime.track.runs import OUTBOX_TAG, Tracking, left_behind

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

log = logging.getLogger(__name__)

PAGE = 1000  # experiments or runs per request

FLOW_RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"
"""A worker sets it for the process of a flow run."""

GRACE = timedelta(minutes=2)
"""How long an ended flow run's process may take to exit by itself."""

_RUNS_PER_REQUEST = 200
_ENDED = frozenset([StateType.COMPLETED, StateType.FAILED, StateType.CANCELLED])


def reap_orphans() -> list[int]:
    """SIGKILL this host's ranks, and the processes they started, whose supervisor is dead.

    The kernel kills a rank with its supervisor (PR_SET_PDEATHSIG), but not a helper that the rank
    started in a session of its own. Processes of a living supervisor, of another machine or of
    another container are never touched. Returns the ids of the killed processes.
    """
    orphans = [pid for pid, text in variable_of_all(OWNER_VARIABLE).items() if _is_orphan(text)]
    for pid in orphans:
        log.warning("killing process %d: its supervisor is dead", pid)
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return orphans


def _is_orphan(text: str) -> bool:
    try:
        owner = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(owner, dict) and is_dead(owner)


def deliver(uri: str, outbox: Path, timeout: float) -> int:
    """Send to MLflow the runs that dead processes left, and end them there.

    Returns how many could not be sent completely within `timeout` seconds.
    """
    if not left_behind(outbox):
        return 0
    return Tracking(uri, outbox, experiment="").close(timeout)


def close_lost_runs(
    client: MlflowClient, outbox: Path, select_ended: Callable[[set[str]], set[str]]
) -> list[str]:
    """End the MLflow runs left RUNNING whose folder was lost with its machine.

    **Arguments:** `outbox`: runs that still have a folder there are skipped.
    `select_ended`: given Prefect flow run ids, returns those that have ended.

    Returns the ids of the runs that were set to KILLED. If a run's process is alive after all, it
    still sets the final status.
    """
    running = {
        run: tags[FLOW_RUN_TAG]
        for run, tags in _running(client).items()
        if FLOW_RUN_TAG in tags and not (outbox / tags[OUTBOX_TAG]).exists()
    }
    ended = select_ended(set(running.values())) if running else set()
    closed = [run for run, flow_run in running.items() if flow_run in ended]
    for run in closed:
        log.warning("ending the MLflow run %s: its flow run has ended", run)
        client.set_terminated(run, "KILLED")
    return closed


def _running(client: MlflowClient) -> dict[str, dict[str, str]]:
    """RUNNING runs of all experiments that were created from a folder of an outbox: id → tags."""
    from mlflow.utils import get_results_from_paginated_fn

    condition = f"attributes.status = 'RUNNING' and tags.`{OUTBOX_TAG}` LIKE '%'"

    def experiments(size: int, token: str | None) -> Sequence[Experiment]:
        return client.search_experiments(max_results=size, page_token=token)

    ids = [
        experiment.experiment_id for experiment in get_results_from_paginated_fn(experiments, PAGE)
    ]

    def runs(size: int, token: str | None) -> Sequence[Run]:
        return client.search_runs(ids, condition, max_results=size, page_token=token)

    return {
        run.info.run_id: run.data.tags
        for run in (get_results_from_paginated_fn(runs, PAGE) if ids else ())
    }


def end_overdue(client: SyncPrefectClient, grace: timedelta = GRACE) -> set[str]:
    """SIGKILL this host's processes of flow runs that ended on the server; returns those runs.

    After 300 s Prefect marks a run cancelled even if its process is alive, and that process takes a
    worker's slot until it ends. A *crashed* run only stopped sending heartbeats: if its process is
    alive, it still owns its work.
    """
    here = set(variable_of_all(FLOW_RUN_VARIABLE).values())
    overdue = flow_runs_over(client, here, _ENDED, grace) if here else set()
    for run in overdue:
        kill_marked(f"{FLOW_RUN_VARIABLE}={run}")
    return overdue


def flow_runs_over(
    client: SyncPrefectClient,
    runs: Collection[str],
    states: Collection[StateType],
    grace: timedelta = GRACE,
) -> set[str]:
    """The flow runs that have been in one of the states for longer than `grace`."""
    latest, ended = datetime.now(UTC) - grace, set()
    ids = [uuid for uuid in map(_uuid, runs) if uuid is not None]
    for first in range(0, len(ids), _RUNS_PER_REQUEST):
        page = FlowRunFilter(id=FlowRunFilterId(any_=ids[first : first + _RUNS_PER_REQUEST]))
        for run in client.read_flow_runs(flow_run_filter=page, limit=_RUNS_PER_REQUEST):
            state = run.state
            if state is not None and state.type in states and state.timestamp < latest:
                ended.add(str(run.id))
    return ended


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
