"""The trainings of a study alone, as a flow."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dynolab.errors import ConfigError
from flows.flow import SOURCE_FIELDS, Form, Plan, StagedFlow
from flows.study.flow import PREFERENCE_FIELDS, PREFERENCE_OBJECTIVES
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps
from tasks.runtime.stage import Platform


class TrainParameters(StudyParameters):
    """A study's settings; those of its analyses are ignored."""

    until: Literal["sft", "preference"] = Field("preference", description="The last training.")

    @model_validator(mode="after")
    def _has_last_training(self) -> TrainParameters:
        if self.until == "sft" and self.sft is None:
            raise ConfigError("until", "sft", "sft is null; set it, or until: preference")
        return self


def plan_training(parameters: TrainParameters, _: Platform) -> Plan:
    """Plans the study's steps that the last training needs; a later study reuses their results."""
    known = resolved(parameters)
    steps = study_steps(known)
    needed: set[str] = {parameters.until}
    for step in reversed(steps):
        if step.name in needed:
            needed |= set(step.inputs.values())
    steps = [step for step in steps if step.name in needed]
    return Plan(known, steps, tags={"seed": str(known.seed)}, trained=steps[-1].name)


FLOW = StagedFlow(
    "train",
    TrainParameters,
    plan_training,
    page="sft",
    file="summary.json",
    forms={
        "sft": Form(
            "Supervised finetuning.",
            {
                **SOURCE_FIELDS,
                "seed": "seed",
                "objective": "sft.objective.name",
                "normalise": "sft.objective.normalise",
                "steps": "sft.steps",
                "optimizer": "sft.optimizer.name",
                "learning_rate": "sft.optimizer.learning_rate",
                "batch_size": "sft.batch_size",
                "ranks": "sft.engine.ranks",
                "probe_every": "sft.probe_every",
            },
            objectives=("sft", "sft_extended"),
            file="builtin.yaml",
            fixed=("until=sft",),
        ),
        "preference": Form(
            "Training on pairs of a chosen and a rejected answer, after SFT.",
            PREFERENCE_FIELDS,
            objectives=PREFERENCE_OBJECTIVES,
            file="builtin.yaml",
            fixed=("until=preference",),
        ),
    },
)
