"""Registers a study's model in MLflow, as a reference to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tasks.runtime.stage import ADDRESS_TAG, DIGEST_TAG
from tasks.runtime.work import StageResult

if TYPE_CHECKING:
    from tasks.runtime.track.runs import RunTracker

MODEL_FOLDER = "model"


def register_model(run: RunTracker, name: str, result: StageResult) -> None:
    """Register a result's model under `name`, as soon as MLflow can be reached."""
    tags = {
        "stage": result.stage,
        "stage_key": result.key,
        ADDRESS_TAG: result.address,
        DIGEST_TAG: result.digest,
    }
    run.register_model(name, model_source(result.address), tags, result.mlflow_run_id)


def model_source(address: str) -> str:
    """Address of the model's files; for a local store `dynolab:/` and the path in the store.

    MLflow accepts no local folder outside a run's own artifacts
    (mlflow.server.handlers._validate_source_run).
    """
    if urlsplit(address).scheme != "file":
        return f"{address}/{MODEL_FOLDER}"
    return f"dynolab:/{address[address.rindex('stages/') :]}/{MODEL_FOLDER}"
