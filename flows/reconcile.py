"""Cleans up after dead processes: on a schedule, or by `dynolab reconcile`."""

from __future__ import annotations

from pathlib import Path

from httpx import HTTPError
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import TERMINAL_STATES, StateType

from dynolab.errors import ConfigError
from tasks.runtime.cleanup import (
    close_lost_runs,
    deliver,
    end_overdue,
    flow_runs_over,
    reap_orphans,
)
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.client import connect

SENDING_SECONDS = 60.0
FLOW = "reconcile"
RUNS_AT_ONCE = 200  # that one request names


@flow(name=FLOW)
def reconcile() -> dict[str, int]:
    """Send unsent runs to MLflow, close abandoned MLflow runs, kill orphaned processes."""
    with get_client(sync_client=True) as client:
        counts = clean_up(Settings.from_environment(), client)
        delete_completed_runs(client)
        return counts


def delete_completed_runs(client: SyncPrefectClient) -> None:
    """Delete this flow's completed runs, which would fill the list that users find theirs in."""
    completed = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.COMPLETED]))
    for run in client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=[FLOW])),
        flow_run_filter=FlowRunFilter(state=completed),
        limit=RUNS_AT_ONCE,
    ):
        client.delete_flow_run(run.id)


def clean_up(settings: Settings, client: SyncPrefectClient) -> dict[str, int]:
    """Clean up on this host; the steps that need no Prefect come first.

    Returns the numbers of orphans killed (`reaped`), runs still unsent (`unsent`), ended flow
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
        return close_lost_runs(
            mlflow, outbox, lambda ids: flow_runs_over(prefect, ids, TERMINAL_STATES)
        )
    except MlflowException as error:
        raise ConfigError("MLFLOW_TRACKING_URI", uri, f"cannot be used: {error}") from error
