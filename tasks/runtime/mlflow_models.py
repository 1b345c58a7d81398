"""The model that a study was run for, as MLflow lists it: by reference to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tasks.runtime.stage import ADDRESS_TAG, DIGEST_TAG
from tasks.runtime.work import StageResult

if TYPE_CHECKING:
    from tasks.runtime.track.tracking import RunTracker

MODEL_FOLDER = "model"


def register_model(run: RunTracker, name: str, result: StageResult) -> None:
    """Has MLflow list a result's model under `name`, as soon as it can be reached."""
    tags = {
        "stage": result.stage,
        "stage_key": result.key,
        ADDRESS_TAG: result.address,
        DIGEST_TAG: result.digest,
    }
    run.register_model(name, model_source(result.address), tags, result.mlflow_run_id)


def model_source(address: str) -> str:
    """Where the model's files lie; of a folder on this machine its place in the store.

    MLflow takes no local folder that is not among a run's own artifacts
    (mlflow.server.handlers._validate_source_run).
    """
    if urlsplit(address).scheme != "file":
        return f"{address}/{MODEL_FOLDER}"
    return f"dynolab:/{address[address.rindex('stages/') :]}/{MODEL_FOLDER}"
