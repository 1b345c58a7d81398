"""MLflow's client, configured so that it never blocks on a server that is down.

Importing MLflow takes 2.0 to 2.8 s and 150 MB (mlflow 3.17, two cores), so only `connect` imports
it: a command whose stages are all cached has nothing to send and saves that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

_LOGIN = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")

# The client reads these from the environment alone.
_SETTINGS = {
    # Tracking retries by itself. With MLflow's seven retries, a call to a server that
    # refuses connections takes four minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",  # also for a large figure on a slow link
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # standard output is for results
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def use_login(variables: Mapping[str, str]) -> None:
    """Set MLflow's login from `variables` in this process; ranks do not inherit it."""
    os.environ.update({name: variables[name] for name in _LOGIN})


def connect(uri: str) -> MlflowClient:
    """Create a client of the server at `uri`; makes no request yet.

    At every request the client reads the login from MLFLOW_TRACKING_USERNAME and
    MLFLOW_TRACKING_PASSWORD, or from MLFLOW_TRACKING_TOKEN.
    """
    os.environ.update(_SETTINGS)  # before the import, which starts MLflow's telemetry
    from mlflow import MlflowClient

    return MlflowClient(uri, registry_uri=uri)
