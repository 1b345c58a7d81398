"""The flow of a study: its plan with the comparisons that its report shows, and its form."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

from dynolab.objectives.registry import RowConfig, names_of
from flows.comparison import resolved_comparison
from flows.flow import SOURCE_FIELDS, Form, Plan, StagedFlow, Step, finished
from flows.mitigation import MitigationParameters, mitigation_steps
from flows.parameters.parse import load_parameters
from flows.registry import REGISTRY, load_flow
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps
from tasks.report import BESIDE, REMEDIES, ReportConfig, early_report
from tasks.runtime.stage import Platform
from tasks.runtime.work import StageResult

COMPARED = {"mitigation": "mitigation", "reproduction": "reproduce"}
"""Setting of `comparisons` → its flow, which may be one of a wing that is not here."""


def compared_results(parameters: StudyParameters, platform: Platform) -> dict[str, StageResult]:
    """The page results of a study's comparisons, if these are finished.

    **Raises** `ConfigError` for an invalid study file of a comparison.
    """
    files, comparisons = parameters.comparisons, dict[str, list[Step]]()
    if files.mitigation is not None:
        remedies = load_parameters(MitigationParameters, Path(files.mitigation))
        comparisons["mitigation"] = mitigation_steps(resolved_comparison(remedies))
    if files.reproduction is not None and COMPARED["reproduction"] in REGISTRY:
        flow = load_flow(COMPARED["reproduction"])
        assert isinstance(flow, StagedFlow)
        findings = load_parameters(flow.parameters, Path(files.reproduction))
        comparisons["reproduction"] = [*flow.plan(findings, platform).steps]
    pages = {
        name: finished(steps, platform).get(steps[-1].name) for name, steps in comparisons.items()
    }
    return {name: page for name, page in pages.items() if page is not None}


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
    known = resolved(parameters)
    compared = compared_results(known, platform)
    missing = {
        name: f"{command} {shlex.quote(file)}"
        for name, command in COMPARED.items()
        if command in REGISTRY
        and (file := getattr(known.comparisons, name)) is not None
        and name not in compared
    }
    steps = study_steps(known, compared, missing)
    report = steps[-1].config
    assert isinstance(report, ReportConfig)
    return Plan(
        known,
        steps,
        compared,
        tags={"seed": str(known.seed)},
        trained="preference",
        early=partial(early_report, report, steps[-1].inputs, [step.name for step in steps]),
        # The remedies may run before the study has ended.
        beside={REMEDIES: report.remedies} if report.remedies else {},
    )


FLOW = StagedFlow(
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
