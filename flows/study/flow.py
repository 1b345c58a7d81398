"""The flows of a study, and of its trainings alone: their plans and forms."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from dynolab.errors import ConfigError
from dynolab.objectives.registry import RowConfig, names_of
from flows.flow import SOURCE_FIELDS, Form, Plan, StagedFlow, finished
from flows.parameters.parse import load_parameters
from flows.registry import REGISTRY, load_flow
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps
from tasks.report import BESIDE, REMEDIES, ReportConfig, early_report
from tasks.runtime.stage import Platform
from tasks.runtime.work import StageResult

COMPARED = {"mitigation": "mitigation", "reproduction": "reproduce"}
"""Setting of `comparisons` → its flow, which may be one of a wing that is not here."""


def comparisons_of(parameters: StudyParameters) -> dict[str, tuple[str, str]]:
    """Setting → flow and study file of the comparisons that a study names."""
    files = dict(parameters.comparisons)
    return {
        name: (flow, files[name])
        for name, flow in COMPARED.items()
        if flow in REGISTRY and files[name] is not None
    }


def compared_results(parameters: StudyParameters, platform: Platform) -> dict[str, StageResult]:
    """The page results of a study's comparisons, if these are finished.

    **Raises** `ConfigError` for an invalid study file of a comparison.
    """
    pages = {}
    for name, (flow_name, file) in comparisons_of(parameters).items():
        flow = load_flow(flow_name)
        assert isinstance(flow, StagedFlow)
        steps = flow.plan(load_parameters(flow.parameters, Path(file)), platform).steps
        page = finished(steps, platform).get(steps[-1].name)
        if page is not None:
            pages[name] = page
    return pages


PREFERENCE_OBJECTIVES = names_of(RowConfig, in_forms=True)
"""Objectives that a form offers for preference training; `sft` is that of SFT."""

PREFERENCE_FIELDS = {
    "seed": "seed",
    **SOURCE_FIELDS,
    "objective": "preference.objective.name",
    "beta": "preference.objective.beta",
    "label_smoothing": "preference.objective.label_smoothing",
    "margin": "preference.objective.margin",
    "sft_weight": "preference.objective.sft_weight",
    "steps": "preference.steps",
    "optimizer": "preference.optimizer.name",
    "learning_rate": "preference.optimizer.learning_rate",
    "batch_size": "preference.batch_size",
    "ranks": "preference.engine.ranks",
    "probe_every": "preference.probe_every",
    "sft_steps": "sft.steps",
    "base_steps": "base.training.steps",
}
"""Fields of a form for preference training and the SFT before it."""


def plan(parameters: StudyParameters, platform: Platform) -> Plan:
    """Plans the study's steps; its report shows those of its comparisons that have run."""
    study = resolved(parameters)
    compared = compared_results(study, platform)
    missing = {
        name: f"{flow} {shlex.quote(file)}"
        for name, (flow, file) in comparisons_of(study).items()
        if name not in compared
    }
    steps = study_steps(study, compared, missing)
    report = steps[-1].config
    assert isinstance(report, ReportConfig)
    return Plan(
        study,
        steps,
        compared,
        tags={"seed": str(study.seed)},
        trained="preference",
        early=partial(early_report, report, steps[-1].inputs, [step.name for step in steps]),
        # The remedies may run before the study has ended.
        beside={REMEDIES: report.remedies} if report.remedies else {},
    )


STUDY = StagedFlow(
    "study",
    StudyParameters,
    plan,
    page="report",
    file="report.html",
    beside=BESIDE,
    forms={
        "study": Form(
            "SFT, preference training, and the forces behind them.",
            {**PREFERENCE_FIELDS, "contrasts": "contrasts"},
            objectives=PREFERENCE_OBJECTIVES,
            file="builtin.yaml",
        )
    },
)


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
    study = resolved(parameters)
    steps = study_steps(study)
    needed: set[str] = {parameters.until}
    for step in reversed(steps):
        if step.name in needed:
            needed |= set(step.inputs.values())
    steps = [step for step in steps if step.name in needed]
    return Plan(study, steps, tags={"seed": str(study.seed)}, trained=steps[-1].name)


TRAIN = StagedFlow(
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

FLOWS = {flow.name: flow for flow in (STUDY, TRAIN)}
