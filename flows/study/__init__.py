"""The study: data → base → SFT → preference training → probe → forces → report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from flows.comparison import resolved_comparison
from flows.flow import SOURCE_FIELDS, Form, Plan, StagedFlow
from flows.mitigation import MitigationParameters, mitigation_steps
from flows.parameters import load_parameters
from flows.reproduce import ReproduceParameters, reproduce_steps
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps
from tasks.report import BESIDE, REMEDIES, ReportConfig, early_report
from tasks.runtime.pipeline import Step, finished
from tasks.runtime.stage import Platform
from tasks.runtime.work import StageResult


def compared_results(parameters: StudyParameters, platform: Platform) -> dict[str, StageResult]:
    """The page results of a study's comparisons, if these are finished.

    **Raises** `ConfigError` for an invalid study file of a comparison.
    """
    finished_pages = {}
    for name, steps in _comparisons(parameters).items():
        page = finished(steps, platform).get(steps[-1].name)
        if page is not None:
            finished_pages[name] = page
    return finished_pages


def missing_commands(
    parameters: StudyParameters, finished_pages: dict[str, StageResult]
) -> dict[str, str]:
    """Comparison of the study that has not run → arguments of `dynolab` that run it."""
    files = parameters.comparisons
    commands = {"mitigation": "mitigation", "reproduction": "reproduce"}
    return {
        name: f"{command} {shlex.quote(file)}"
        for name, command in commands.items()
        if (file := getattr(files, name)) is not None and name not in finished_pages
    }


def _comparisons(parameters: StudyParameters) -> dict[str, list[Step]]:
    files, steps = parameters.comparisons, {}
    if files.mitigation is not None:
        remedies = load_parameters(MitigationParameters, Path(files.mitigation))
        steps["mitigation"] = mitigation_steps(resolved_comparison(remedies))
    if files.reproduction is not None:
        findings = load_parameters(ReproduceParameters, Path(files.reproduction))
        steps["reproduction"] = reproduce_steps(resolved_comparison(findings))
    return steps


PREFERENCE_OBJECTIVES = (
    "dpo",
    "robust_dpo",
    "ipo",
    "slic",
    "hinge",
    "simpo",
    "sppo",
    "sft_extended",
)
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
}
"""Fields of a form for preference training and the SFT before it."""


def plan(parameters: StudyParameters, platform: Platform) -> Plan:
    """Plans the study's steps; its report shows those of its comparisons that have run."""
    known = resolved(parameters)
    compared = compared_results(known, platform)
    steps = study_steps(known, compared, missing_commands(known, compared))
    return Plan(
        known,
        steps,
        compared,
        tags={"seed": str(known.seed)},
        trained="preference",
        early=partial(early_page, steps),
        beside=_beside(steps),
    )


def _beside(steps: Sequence[Step]) -> dict[str, str]:
    """The file of remedies, if the study has one, which may run before the study has ended."""
    report = steps[-1].config
    return (
        {REMEDIES: report.remedies} if isinstance(report, ReportConfig) and report.remedies else {}
    )


def early_page(
    steps: Sequence[Step], results: Mapping[str, StageResult], platform: Platform
) -> str:
    """The report of the steps that have ended."""
    report = steps[-1]
    assert isinstance(report.config, ReportConfig)
    reads = {name: results[step] for name, step in report.inputs.items() if step in results}
    coming = [step.name for step in steps if step.name not in results]
    return early_report(report.config, reads, platform.store, coming)


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
