"""Supervision under label noise: images → every noise level → learning speeds → page."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.running import run_steps
from flows.supervision_parameters import SupervisionParameters, resolved_supervision
from flows.supervision_steps import supervision_steps


@flow(name="supervision", flow_run_name="{parameters.name}")
def supervision(parameters: SupervisionParameters, fresh: bool = False) -> dict[str, Any]:
    """Compares what a classifier can be taught when a share of its labels is wrong.

    `fresh` computes every stage again. Returns each stage's result as the study does.
    """
    known = resolved_supervision(parameters)
    return run_steps(
        supervision_steps(known),
        study=known.name,
        project=known.project,
        params=known.model_dump(mode="json"),
        fresh=fresh,
        tags={"flow": "supervision"},
    )
