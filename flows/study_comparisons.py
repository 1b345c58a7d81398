"""The comparisons that a study's report shows: those among the ones it names that have run."""

from __future__ import annotations

from pathlib import Path

from flows.comparison import resolved_comparison
from flows.mitigation_parameters import MitigationParameters
from flows.mitigation_steps import mitigation_steps
from flows.parameters import StudyParameters, load_parameters
from flows.reproduce_parameters import ReproduceParameters
from flows.reproduce_steps import reproduce_steps
from flows.steps import study_steps
from tasks.runtime.chain import Step, finished
from tasks.runtime.stage import Platform
from tasks.runtime.work import StageResult


def planned_study(
    parameters: StudyParameters, platform: Platform
) -> tuple[list[Step], dict[str, StageResult]]:
    """A resolved study's steps, and the results of comparisons that its report reads besides."""
    found = compared_results(parameters, platform)
    return study_steps(parameters, found, missing_commands(parameters, found)), found


def compared_results(parameters: StudyParameters, platform: Platform) -> dict[str, StageResult]:
    """The pages' results of the comparisons that a study names and that are finished.

    **Raises** `ConfigError` for a study file that cannot work.
    """
    found = {}
    for name, steps in _comparisons(parameters).items():
        page = finished(steps, platform).get(steps[-1].name)
        if page is not None:
            found[name] = page
    return found


def missing_commands(parameters: StudyParameters, found: dict[str, StageResult]) -> dict[str, str]:
    """By comparison that is named and has not run, the command that runs it."""
    files = parameters.comparisons
    commands = {"mitigation": "mitigation", "reproduction": "reproduce"}
    return {
        name: f"dynolab {command} --config {file}"
        for name, command in commands.items()
        if (file := getattr(files, name)) is not None and name not in found
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
