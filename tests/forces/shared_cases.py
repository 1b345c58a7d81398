"""What one process and many ranks compute alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from dynolab.forces import ForceMap, PolicyFunction, force_map
from dynolab.objectives import DPO, DPOConfig
from dynolab.training.step_record import RecordedExample
from tests.forces.families import build
from tests.forces.small_models import encoded, pairs, with_reference

MAPS: dict[str, dict[str, Any]] = {
    "even": {"observed": [(4, 5)] * 6},
    "uneven": {"observed": [(4, 12), (3, 2), (5, 3)]},
}
ON_DISK = {"observed": [(4, 5)] * 6, "memory_bytes": 2**19}


def make_map(name: str, folder: Path | None = None, *, over_ranks: bool = False) -> ForceMap:
    case = ON_DISK if name == "on_disk" else MAPS[name]
    model = build("llama_tied", torch.float32)
    observed = [
        encoded(seed, prompt, response) for seed, (prompt, response) in enumerate(case["observed"])
    ]
    more = {"memory_bytes": case["memory_bytes"], "update": 0.2} if name == "on_disk" else {}
    return force_map(
        PolicyFunction(model),
        observed,
        examples(model),
        DPO(DPOConfig()),
        folder=folder,
        over_ranks=over_ranks,
        **more,
    )


def examples(model: nn.Module) -> list[RecordedExample]:
    """References to three digits: a number of threads must not make them other inputs."""

    def rounded(values: list[float] | None) -> list[float]:
        return [round(value, 3) for value in values or []]

    return [
        one.model_copy(
            update={
                "chosen_reference": rounded(one.chosen_reference),
                "rejected_reference": rounded(one.rejected_reference),
            }
        )
        for one in with_reference(model, pairs(2))
    ]
