"""`TrainJob`: the settings and paths that every rank reads."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from dynolab.store import hash_file
from dynolab.training.config import GroupTrainConfig, TrainConfig

STOP = "stop"


class TrainJob(BaseModel):
    """One training run on local files.

    `model`: folder of the initial policy, which is also the reference of objectives that need one.
    `examples`: rows of answers (`Example`), or of prompts (`PromptRow`) for training on groups.
    `output`: folder of the results. `resume_out`: folder of resume states; each gets its final
    name when complete. `resume_from`: a resume state to continue from.
    `logs`: folder of diagnostics after a failure; default: `output`.
    `reference_cache`: folder that keeps the reference's log-probabilities for later trainings on
    the same rows and model.
    `record_cache`: folder of the `RecordCache` that takes the tensors of recorded steps; default:
    they stay in `output`. `all_steps`: folder that takes the records of all steps, each under its
    name when complete. `whole_steps`: of the training that this one is the beginning of, so that
    both share the reference's scores; default: its own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    config: TrainConfig | GroupTrainConfig = Field(union_mode="left_to_right")
    model: Path
    examples: Path
    probes: Path | None = None
    output: Path
    resume_out: Path
    resume_from: Path | None = None
    logs: Path | None = None
    reference_cache: Path | None = None
    record_cache: Path | None = None
    all_steps: Path | None = None
    whole_steps: int | None = None

    @property
    def stop(self) -> Path:
        """A file that asks the training to save its state after the current step, and to end."""
        return self.resume_out / STOP

    def input_digests(self) -> dict[str, str]:
        """Sha256 of the examples and of the initial model's files, by file name."""
        model = [*self.model.glob("*.safetensors"), *self.model.glob("config.json")]
        return {
            file.name: _digest(file, file.stat().st_mtime_ns)
            for file in (self.examples, *sorted(model))
        }


@cache
def _digest(file: Path, modified_ns: int) -> str:
    """A file's sha256, cached until its modification time changes."""
    return hash_file(file).sha256
