"""Cleans up after dead processes: on a schedule, or by `dynolab reconcile`."""

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
"""Prefect's worker sets it in the process of a flow run."""

GRACE = timedelta(minutes=2)
"""How long an ended flow run's process may take to exit by itself."""

SENDING_SECONDS = 60.0
_PAGE = 200  # flow runs per request
_ENDED = frozenset([StateType.COMPLETED, StateType.FAILED, StateType.CANCELLED])


@flow(name="reconcile")
def reconcile() -> dict[str, int]:
    """Send unsent MLflow operations, close abandoned MLflow runs, kill orphaned processes."""
    with get_client(sync_client=True) as client:
        return heal(Settings.from_environment(), client)


def heal(settings: Settings, client: SyncPrefectClient) -> dict[str, int]:
    """Clean up on this host; the steps that need no Prefect come first.

    Returns the numbers of orphans killed (`reaped`), operations still unsent (`unsent`), ended flow
    runs whose processes were killed (`ended`), and MLflow runs closed (`closed`).

    **Raises** `ConfigError` if a server cannot be reached.
    """
    uri, outbox = settings.mlflow_tracking_uri, settings.outbox
    counts = {"reaped": len(reap_orphans())}
    if uri is not None:
        counts["unsent"] = deliver(uri, outbox, SENDING_SECONDS)
    try:
        counts["ended"] = len(end_overdue(client))
        if uri is not None:
            counts["closed"] = len(_close_mlflow_runs(uri, outbox, client))
    except HTTPError as error:
        address = str(client.api_url)
        raise ConfigError("PREFECT_API_URL", address, f"cannot be used: {error}") from error
    return counts


def _close_mlflow_runs(uri: str, outbox: Path, prefect: SyncPrefectClient) -> list[str]:
    mlflow = connect(uri)
    from mlflow.exceptions import MlflowException

    try:
        return close_lost_runs(mlflow, outbox, lambda ids: over(prefect, ids, TERMINAL_STATES))
    except MlflowException as error:
        raise ConfigError("MLFLOW_TRACKING_URI", uri, f"cannot be used: {error}") from error


def end_overdue(client: SyncPrefectClient, grace: timedelta = GRACE) -> set[str]:
    """SIGKILL this host's processes of flow runs that ended on the server; returns those runs.

    After 300 s Prefect marks a run cancelled even if its process is alive, and that process takes a
    worker's slot until it ends. A *crashed* run only stopped sending heartbeats: if its process is
    alive, it still owns its work.
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
    """The flow runs that have been in one of the states for longer than `grace`."""
    latest, ended = datetime.now(UTC) - grace, set()
    ids = [uuid for uuid in map(_uuid, runs) if uuid is not None]
    for first in range(0, len(ids), _PAGE):
        page = FlowRunFilter(id=FlowRunFilterId(any_=ids[first : first + _PAGE]))
        for run in client.read_flow_runs(flow_run_filter=page, limit=_PAGE):
            state = run.state
            if state is not None and state.type in states and state.timestamp < latest:
                ended.add(str(run.id))
    return ended


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
