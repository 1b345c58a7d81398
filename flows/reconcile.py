"""The flow that cleans up after dead processes, on a schedule."""

from __future__ import annotations

from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType

from tasks.runtime.cleanup import clean_up
from tasks.runtime.system.settings import Settings

FLOW = "reconcile"
RUNS_AT_ONCE = 200  # that one request names


@flow(name=FLOW)
def reconcile() -> dict[str, int]:
    """Send unsent runs to MLflow, kill orphaned processes."""
    counts = clean_up(Settings.from_environment())
    with get_client(sync_client=True) as client:
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
