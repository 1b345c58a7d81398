"""The command `dynolab reconcile`: sets right by hand what the clock does every ten minutes."""

from __future__ import annotations

import os

from tasks.runtime.servers.services import MLFLOW, PREFECT
from tasks.runtime.servers.stack import use_services
from tasks.runtime.system.settings import Settings

LABELS = {
    "ended": "flow runs whose processes went on after their end, ended",
    "reaped": "orphaned processes, killed",
    "closed": "MLflow runs that nobody works on, closed",
    "unsent": "operations that wait for MLflow",
}


def start_reconcile() -> dict[str, int]:
    """Heals with the servers at hand, or with own ones on the home's databases; returns counts."""
    settings = Settings.from_environment()
    known = {PREFECT: settings.prefect_api_url, MLFLOW: settings.mlflow_tracking_uri}
    with use_services(settings.home, [name for name, uri in known.items() if not uri]) as services:
        services.wait_ready()
        os.environ.update(services.environment())
        from prefect.client.orchestration import get_client

        from flows.reconcile import heal

        with get_client(sync_client=True) as client:
            return heal(Settings.from_environment(), client)
