"""Classifiers: images → forces of every network → learning paths → page."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.classification_parameters import ClassificationParameters, resolved_classification
from flows.classification_steps import classification_steps
from flows.running import run_steps


@flow(name="classification", flow_run_name="{parameters.name}")
def classification(parameters: ClassificationParameters, fresh: bool = False) -> dict[str, Any]:
    """Trains classifiers and says which image pushes which, and how every example is learned.

    `fresh` computes every stage again. Returns each stage's result as the study does.
    """
    known = resolved_classification(parameters)
    return run_steps(
        classification_steps(known),
        study=known.name,
        project=known.project,
        params=known.model_dump(mode="json"),
        fresh=fresh,
        tags={"flow": "classification"},
    )
