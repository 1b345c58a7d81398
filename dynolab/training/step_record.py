"""The record of one optimizer step: all that is needed to replay it and split it into forces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict
from safetensors.torch import load_file, save_file
from torch import Tensor

from dynolab.errors import ConfigError
from dynolab.objectives.registry import ObjectiveConfig
from dynolab.training.config import OptimizerConfig
from dynolab.training.recorded_examples import (
    Recorded,
    RecordedExample,
    RecordedGroup,
    read_recorded,
)

SECOND_MOMENT_AFTER = "second_moment_after"

__all__ = [
    "SECOND_MOMENT_AFTER",
    "Recorded",
    "RecordedExample",
    "RecordedGroup",
    "StepFacts",
    "StepRecord",
    "at_least_rounding",
]


class StepFacts(BaseModel):
    """Settings and numbers of a recorded step; `step` counts from 0.

    The gradient was multiplied by `clip_factor`; `learning_rate` includes warm-up.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    step: int
    learning_rate: float
    grad_norm: float
    clip_factor: float
    objective: ObjectiveConfig
    optimizer: OptimizerConfig


def at_least_rounding(moment: Tensor) -> Tensor:
    """A mean of squared gradients that bf16 has rounded, no less than what its rounding makes.

    An error of ε in gradients is one of ε² in their squares; a gradient that is rounded to nothing
    would have fp32's lines divided by nothing.
    """
    mean = moment.sum() / moment.count_nonzero().clamp(min=1)
    return moment.clamp(min=torch.finfo(torch.bfloat16).eps ** 2 * mean)


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step.

    `before`, `after`: fp32 master weights by parameter name (tied weights once, under their first
    name). `state`: the optimizer's tensors *before* the step by parameter name and torch's own
    state name (`exp_avg`, `exp_avg_sq`, `square_avg`, `momentum_buffer`); empty before a
    stateful optimizer's first step. `SECOND_MOMENT_AFTER` is among them for optimizers that divide
    by one: where it is small, a recomputed gradient cannot give it, as rounding decides it. Under
    bf16 it is at least ε² of the parameter's mean: of a smaller gradient, rounding decides how much
    is left, and to divide by next to nothing would enlarge the examples' fp32 gradients.
    """

    facts: StepFacts
    examples: tuple[Recorded, ...]
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    state: dict[str, dict[str, Tensor]]

    def save(self, folder: Path) -> None:
        """Writes `step.json`, `batch.jsonl` and three safetensors files."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "step.json").write_text(self.facts.model_dump_json(indent=1))
        lines = [example.model_dump_json() for example in self.examples]
        (folder / "batch.jsonl").write_text("\n".join(lines) + "\n")
        save_file(_contiguous(self.before), folder / "before.safetensors")
        save_file(_contiguous(self.after), folder / "after.safetensors")
        flat = {
            f"{name}|{key}": tensor
            for name, tensors in self.state.items()
            for key, tensor in tensors.items()
        }
        save_file(_contiguous(flat), folder / "optimizer.safetensors")

    def as_gradient_step(self) -> StepRecord:
        """The same batch in a plain gradient step of the same learning rate, with nothing clipped.

        `before` and `after` stay what they were.
        """
        optimizer = OptimizerConfig(name="sgd", learning_rate=self.facts.learning_rate or 1.0)
        facts = self.facts.model_copy(update={"clip_factor": 1.0, "optimizer": optimizer})
        return replace(self, facts=facts, state={})

    @classmethod
    def load(cls, folder: Path, tensors: Path | None = None) -> StepRecord:
        """Reads a record; tensors are on the CPU.

        **Arguments:** `tensors`: folder of the safetensors files; default: `folder`.

        **Raises** `ConfigError` for a folder of a stage's result, whose tensors are elsewhere.
        """
        if tensors is None:
            if not (folder / "before.safetensors").exists():
                raise ConfigError("record", str(folder), "holds no weights; read it by RecordCache")
            tensors = folder
        state: dict[str, dict[str, Tensor]] = {}
        for flat, tensor in load_file(tensors / "optimizer.safetensors").items():
            name, key = flat.rsplit("|", 1)
            state.setdefault(name, {})[key] = tensor
        lines = (folder / "batch.jsonl").read_text().splitlines()
        return cls(
            facts=StepFacts.model_validate_json((folder / "step.json").read_text()),
            examples=tuple(read_recorded(line) for line in lines),
            before=load_file(tensors / "before.safetensors"),
            after=load_file(tensors / "after.safetensors"),
            state=state,
        )


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.detach().to("cpu", torch.float32).contiguous()
        for name, tensor in tensors.items()
    }
