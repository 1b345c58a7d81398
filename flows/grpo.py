"""The comparison of arms: shared start → trainings on sampled groups → evaluation → page."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.comparison import resolved_comparison
from flows.grpo_parameters import GrpoParameters
from flows.grpo_steps import grpo_steps
from flows.running import run_steps


@flow(name="grpo", flow_run_name="{parameters.name}")
def grpo(parameters: GrpoParameters, fresh: bool = False) -> dict[str, Any]:
    """Trains a model on groups of its own answers in several ways, and compares what they do.

    `fresh` computes every stage again. Returns each stage's result as the study does.
    """
    known = resolved_comparison(parameters)
    return run_steps(
        grpo_steps(known),
        study=known.name,
        project=known.project,
        params=known.model_dump(mode="json"),
        fresh=fresh,
        tags={"flow": "grpo"},
    )
