"""A training job: what a rank program is told, and nothing else."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from dynolab.training.config import GroupTrainConfig, TrainConfig


class TrainJob(BaseModel):
    """One training run on local files.

    `model`: folder of the initial policy, which is also the reference where one is needed.
    `examples`: rows of answers (`Example`), or of prompts (`PromptRow`) for training on groups.
    `output`: folder of the results. `resume_out`: where resume states appear, each under its
    final name only when whole. `resume_from`: a resume state to continue from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    config: TrainConfig | GroupTrainConfig = Field(union_mode="left_to_right")
    model: Path
    examples: Path
    probes: Path | None = None
    output: Path
    resume_out: Path
    resume_from: Path | None = None
