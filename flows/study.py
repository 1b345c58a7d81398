"""The study: data → base → SFT → preference training → probe → forces → report."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.parameters import StudyParameters, resolved
from flows.running import run_steps
from flows.study_comparisons import planned_study
from tasks.runtime.opening import planning_platform


@flow(name="study", flow_run_name="{parameters.name}")
def study(parameters: StudyParameters, fresh: bool = False) -> dict[str, Any]:
    """Finetunes a model on preferences and measures the forces that did it.

    `fresh` computes every stage again. Returns each stage's result: its address in the store, its
    digest, a few numbers, and its MLflow run.
    """
    known = resolved(parameters)
    steps, given = planned_study(known, planning_platform())
    return run_steps(
        steps,
        study=known.name,
        project=known.project,
        given=given,
        params=known.model_dump(mode="json"),
        fresh=fresh,
        tags={"flow": "study", "seed": str(known.seed)},
        trained="preference",
    )
