"""The chapter on simplicity: many mappings learned at once → how fast, and why → page."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.running import run_steps
from flows.simplicity_parameters import SimplicityParameters
from flows.simplicity_steps import simplicity_steps


@flow(name="simplicity", flow_run_name="{parameters.name}")
def simplicity(parameters: SimplicityParameters, fresh: bool = False) -> dict[str, Any]:
    """Measures how fast compositional, holistic and degenerate mappings are learned, and why.

    `fresh` computes every stage again. Returns each stage's result as the study does.
    """
    return run_steps(
        simplicity_steps(parameters),
        study=parameters.name,
        project=parameters.project,
        params=parameters.model_dump(mode="json"),
        fresh=fresh,
        tags={"flow": "simplicity"},
    )
