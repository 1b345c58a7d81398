"""Cleanup after dead processes: scheduled on a worker, or by `dynolab reconcile`."""

from __future__ import annotations

from pathlib import Path

from httpx import HTTPError
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import TERMINAL_STATES

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


@flow(name="reconcile")
def reconcile() -> dict[str, int]:
    """Sends what is unsent, closes MLflow runs that nobody works on, kills what nobody owns."""
    with get_client(sync_client=True) as client:
        return clean_up(Settings.from_environment(), client)


def clean_up(settings: Settings, client: SyncPrefectClient) -> dict[str, int]:
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
        return close_lost_runs(
            mlflow, outbox, lambda ids: flow_runs_over(prefect, ids, TERMINAL_STATES)
        )
    except MlflowException as error:
        raise ConfigError("MLFLOW_TRACKING_URI", uri, f"cannot be used: {error}") from error
