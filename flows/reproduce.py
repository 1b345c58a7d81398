"""The papers' findings on finetuning: SFT and DPO in every order they report → claims → page."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.comparison import resolved_comparison
from flows.reproduce_parameters import ReproduceParameters
from flows.reproduce_steps import reproduce_steps
from flows.running import run_steps


@flow(name="reproduce", flow_run_name="{parameters.name}")
def reproduce(parameters: ReproduceParameters, fresh: bool = False) -> dict[str, Any]:
    """Trains a model as the papers do, and says which of their findings appear.

    `fresh` computes every stage again. Returns each stage's result as the study does.
    """
    known = resolved_comparison(parameters)
    return run_steps(
        reproduce_steps(known),
        study=known.name,
        project=known.project,
        params=known.model_dump(mode="json"),
        fresh=fresh,
        tags={"flow": "reproduce"},
    )
