"""The model that a study was run for: listed by MLflow, and a way back to its data."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from flows.commands import show_lineage
from tests.flows.lab import Lab

NAME = "undisturbed-small"


@pytest.mark.services
@pytest.mark.ranks
def test_a_studys_model_is_listed_once_and_leads_back_to_its_data(
    undisturbed: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    trained = undisturbed.manifest("preference")
    client: Any = MlflowClient(undisturbed.mlflow)
    (version,) = client.search_model_versions(f"name = '{NAME}'")
    assert version.tags["stage_key"] == trained["key"]
    assert version.run_id == trained["mlflow_run_id"]
    assert f"/stages/preference/{trained['key']}/attempt-" in version.source

    monkeypatch.setenv("DYNOLAB_HOME", str(undisturbed.home))
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, undisturbed.environment[name])
    monkeypatch.delenv("DYNOLAB_STORE", raising=False)
    said = StringIO()
    show_lineage(f"models:/{NAME}/{version.version}", Console(file=said, width=300))
    told = [line.strip("│├└─ ").partition(" ")[0] for line in said.getvalue().splitlines()]
    assert told[0] == "preference" and {"data:", "model:"} <= set(told)
