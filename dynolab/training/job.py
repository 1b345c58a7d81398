"""A training job: what a rank program is told, and nothing else."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from dynolab.training.config import TrainConfig


class TrainJob(BaseModel):
    """One training run on local files.

    `model`: folder of the initial policy, which is also the reference where one is needed.
    `output`: folder of the results. `resume_out`: where resume states appear, each under its
    final name only when whole. `resume_from`: a resume state to continue from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    config: TrainConfig
    model: Path
    examples: Path
    probes: Path | None = None
    output: Path
    resume_out: Path
    resume_from: Path | None = None
