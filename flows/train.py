"""A training by itself: data → base → SFT, or also → preference training; no analysis."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.running import run_steps
from flows.train_parameters import TrainParameters, resolved_training, train_steps


@flow(name="train", flow_run_name="{parameters.name}")
def train(parameters: TrainParameters, fresh: bool = False) -> dict[str, Any]:
    """Trains as a study does, and leaves its analyses out; a study run later finds the stages.

    `fresh` computes every stage again. Returns each stage's result as the study does.
    """
    known = resolved_training(parameters)
    steps = train_steps(known)
    return run_steps(
        steps,
        study=known.name,
        project=known.project,
        params=known.model_dump(mode="json"),
        fresh=fresh,
        tags={"flow": "train", "seed": str(known.seed)},
        trained=steps[-1].name,
    )
