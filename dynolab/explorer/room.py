"""Whether what is asked of a recorded step fits into the memory that is free."""

from __future__ import annotations

from pathlib import Path

import torch

from dynolab.costs.memory import ledger_copies
from dynolab.data.batches import REJECTED
from dynolab.errors import ConfigError
from dynolab.forces.map.costs import free_bytes
from dynolab.objectives import build_objective
from dynolab.training.record_cache import size_of_weights
from dynolab.training.step_record import StepFacts


def check_room(record: Path, device: torch.device) -> None:
    """Raises `ConfigError` unless a recorded step's lines to one answer fit beside all else.

    **Arguments:** `record`: the step's folder in a training's result, without its tensors.
    """
    facts = StepFacts.model_validate_json((record / "step.json").read_text())
    sides = 2 if REJECTED in build_objective(facts.objective).sides else 1
    responses = sides * len((record / "batch.jsonl").read_text().splitlines())
    weights, free = size_of_weights(record), free_bytes(device)
    copies = ledger_copies(facts.optimizer, functionals=1, responses=responses)
    if copies * weights > free:
        raise ConfigError(
            "step",
            facts.step,
            f"takes about {copies * weights / 1e9:.1f} GB here: {copies} copies of the "
            f"{weights / 1e9:.1f} GB of trained weights, for a batch of {responses} answers; "
            f"{free / 1e9:.1f} GB are free. Open the study on a machine with more memory, or "
            "train it with a smaller batch_size or LoRA; what its ledger has stored is shown here",
        )
