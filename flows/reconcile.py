"""Cleanup after dead processes: scheduled on a worker, or by `dynolab reconcile`."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from httpx import HTTPError
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import TERMINAL_STATES, StateType

from dynolab.errors import ConfigError
from tasks.runtime.cleanup import close_lost_runs, deliver, reap_orphans
from tasks.runtime.system.processes import kill_marked, variable_of_all
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.client import connect

FLOW_RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"
"""A worker sets it for the process of a flow run."""

GRACE = timedelta(minutes=2)
"""What a flow run that is over has to end in order."""

SENDING_SECONDS = 60.0
_ASKED_AT_ONCE = 200
_ENDED = frozenset([StateType.COMPLETED, StateType.FAILED, StateType.CANCELLED])


@flow(name="reconcile")
def reconcile() -> dict[str, int]:
    """Sends what is unsent, closes MLflow runs that nobody works on, kills what nobody owns."""
    with get_client(sync_client=True) as client:
        return heal(Settings.from_environment(), client)


def heal(settings: Settings, client: SyncPrefectClient) -> dict[str, int]:
    """Does what `reconcile` says on this host; what needs no Prefect first.

    Returns how many orphans were killed, how many operations are still unsent, how many flow runs'
    processes were ended that went on after their end, and how many MLflow runs were closed.

    **Raises** `ConfigError` where a server is away.
    """
    uri, outbox = settings.mlflow_tracking_uri, settings.outbox
    figures = {"reaped": len(reap_orphans())}
    if uri is not None:
        figures["unsent"] = deliver(uri, outbox, SENDING_SECONDS)
    try:
        figures["ended"] = len(end_overdue(client))
        if uri is not None:
            figures["closed"] = len(_close_mlflow_runs(uri, outbox, client))
    except HTTPError as error:
        address = str(client.api_url)
        raise ConfigError("PREFECT_API_URL", address, f"cannot be used: {error}") from error
    return figures


def _close_mlflow_runs(uri: str, outbox: Path, prefect: SyncPrefectClient) -> list[str]:
    mlflow = connect(uri)
    from mlflow.exceptions import MlflowException

    try:
        return close_lost_runs(mlflow, outbox, lambda ids: over(prefect, ids, TERMINAL_STATES))
    except MlflowException as error:
        raise ConfigError("MLFLOW_TRACKING_URI", uri, f"cannot be used: {error}") from error


def end_overdue(client: SyncPrefectClient, grace: timedelta = GRACE) -> set[str]:
    """SIGKILL the processes of flow runs that are over on the server and do not end here.

    After 300 s Prefect calls a run cancelled even if its process lives, and a worker has no place
    for another run until it is gone. A run that has *crashed* only fell silent: where its process
    lives it still owns its work.
    """
    here = set(variable_of_all(FLOW_RUN_VARIABLE).values())
    overdue = over(client, here, _ENDED, grace) if here else set()
    for run in overdue:
        kill_marked(f"{FLOW_RUN_VARIABLE}={run}")
    return overdue


def over(
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
