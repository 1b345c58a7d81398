"""The comparison of remedies: shared start → preference trainings → answers → contests → page."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.comparison import resolved_comparison
from flows.mitigation_parameters import MitigationParameters
from flows.mitigation_steps import mitigation_steps
from flows.running import run_steps


@flow(name="mitigation", flow_run_name="{parameters.name}")
def mitigation(parameters: MitigationParameters, fresh: bool = False) -> dict[str, Any]:
    """Trains a model on preferences in several ways, and compares what each squeezes.

    `fresh` computes every stage again. Returns each stage's result as the study does.
    """
    known = resolved_comparison(parameters)
    return run_steps(
        mitigation_steps(known),
        study=known.name,
        project=known.project,
        params=known.model_dump(mode="json"),
        fresh=fresh,
        tags={"flow": "mitigation"},
    )
