"""What one process and many ranks compute alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from dynolab.data.encode import Encoder
from dynolab.forces import ForceMap, PolicyFunction, StepForces, force_map, step_forces
from dynolab.objectives import DPO, DPOConfig
from dynolab.training.config import OptimizerConfig, TrainConfig
from dynolab.training.step_record import RecordedExample
from tests.forces.families import build
from tests.forces.small_models import encoded, pairs, train_steps, with_reference
from tests.forces.test_step_forces import PROBES, Numbers

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


def make_rows(*, over_ranks: bool = False) -> StepForces:
    model = build("gpt_neox", torch.float32)
    config = TrainConfig(
        objective=DPOConfig(),
        optimizer=OptimizerConfig(name="adamw", learning_rate=1e-2),
        engine={"kind": "plain", "ranks": 1},
    )
    record = train_steps(model, config, examples(model), steps=2).records[-1]
    encoder = Encoder(Numbers(), 32, "drop")
    return step_forces(
        record, PolicyFunction(model), PROBES, encoder, stage="dpo", over_ranks=over_ranks
    )
