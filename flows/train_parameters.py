"""Parameters and stages of the flow `train`: a study's way up to one of its trainings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from flows.parameters import StudyParameters, resolved
from flows.steps import study_steps
from tasks.runtime.chain import Step


class TrainParameters(StudyParameters):
    """A study's settings, of which those of its analyses are left alone."""

    until: Literal["sft", "preference"] = Field("preference", description="The last training.")


def resolved_training(parameters: TrainParameters) -> TrainParameters:
    """The parameters as `resolved` gives a study's."""
    known = resolved(parameters)
    assert isinstance(known, TrainParameters)
    return known


def train_steps(parameters: TrainParameters) -> list[Step]:
    """The study's stages that lead to the last training, in their order."""
    steps = study_steps(parameters)
    needed: set[str] = {parameters.until}
    for step in reversed(steps):
        if step.name in needed:
            needed |= set(step.inputs.values())
    return [step for step in steps if step.name in needed]
