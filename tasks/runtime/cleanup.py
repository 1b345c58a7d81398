"""Cleans up after dead processes: kills orphans, sends outboxes, closes MLflow runs."""

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
from tasks.runtime.track.outbox import OUTBOX_TAG, left_behind
from tasks.runtime.track.prefect_progress import FLOW_RUN_TAG
from tasks.runtime.track.tracking import Tracking

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

log = logging.getLogger(__name__)

PAGE = 1000  # experiments or runs of one answer

FLOW_RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"
"""A worker sets it for the process of a flow run."""

GRACE = timedelta(minutes=2)
"""What a flow run that is over has to end in order."""

_ASKED_AT_ONCE = 200
_ENDED = frozenset([StateType.COMPLETED, StateType.FAILED, StateType.CANCELLED])


def reap_orphans() -> list[int]:
    """SIGKILL ranks of this host, and what ranks have started, whose supervisor is dead.

    A rank ends with its supervisor by the kernel's hand, but not a helper that the rank has put
    into a session of its own. What a living supervisor owns is never touched, nor what belongs to
    another machine or container. Returns the processes killed.
    """
    orphans = [pid for pid, text in variable_of_all(OWNER_VARIABLE).items() if _is_orphan(text)]
    for pid in orphans:
        log.warning("process %d is an orphan of a dead supervisor and is killed", pid)
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
    """Send what dead processes left to MLflow, and end their runs there.

    Returns the operations that could not be sent within `timeout` seconds.
    """
    if not left_behind(outbox):
        return 0
    return Tracking(uri, outbox, experiment="").close(timeout)


def close_lost_runs(
    client: MlflowClient, outbox: Path, over: Callable[[set[str]], set[str]]
) -> list[str]:
    """End the MLflow runs left RUNNING whose outbox was lost with its machine.

    **Arguments:** `outbox`: runs whose queue lies there are left to it. `over`: of some Prefect
    flow runs, those that are over. Returns the ids of the runs that were ended, as KILLED; a
    process that lives after all still gives its run its true end.
    """
    running = {
        run: tags[FLOW_RUN_TAG]
        for run, tags in _running(client).items()
        if FLOW_RUN_TAG in tags and not (outbox / f"{tags[OUTBOX_TAG]}.jsonl").exists()
    }
    ended = over(set(running.values())) if running else set()
    closed = [run for run, flow_run in running.items() if flow_run in ended]
    for run in closed:
        log.warning("the MLflow run %s belongs to a flow run that is over: it is ended", run)
        client.set_terminated(run, "KILLED")
    return closed


def _running(client: MlflowClient) -> dict[str, dict[str, str]]:
    """Runs in state RUNNING that came from an outbox, of all experiments: id → tags."""
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
    """SIGKILL the processes of flow runs that are over on the server and do not end here.

    After 300 s Prefect calls a run cancelled even if its process lives, and a worker has no place
    for another run until it is gone. A run that has *crashed* only fell silent: where its process
    lives it still owns its work.
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
    """Those flow runs that the server knows to be in one of the states, for longer than `grace`."""
    latest, ended = datetime.now(UTC) - grace, set()
    ids = [uuid for uuid in map(_uuid, runs) if uuid is not None]
    for first in range(0, len(ids), _ASKED_AT_ONCE):
        asked = FlowRunFilter(id=FlowRunFilterId(any_=ids[first : first + _ASKED_AT_ONCE]))
        for run in client.read_flow_runs(flow_run_filter=asked, limit=_ASKED_AT_ONCE):
            state = run.state
            if state is not None and state.type in states and state.timestamp < latest:
                ended.add(str(run.id))
    return ended


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
