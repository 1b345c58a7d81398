"""Stage `report`: the study's page, figures and verdicts."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from dynolab.comparisons.pair_arms import FOLLOWED
from dynolab.data.rows import ProbeRow, read_rows
from dynolab.data.sources.config import rows_line
from dynolab.grouping import grouped
from dynolab.objectives.registry import PAIR_OBJECTIVES, ObjectiveConfig, changed_settings
from dynolab.report.inputs.study import (
    ReportInputs,
    StudyFacts,
    read_audit,
    read_compared,
    read_kernel,
    read_squeezing,
)
from dynolab.results.ledger_reader import LedgerReader, read_ledger
from dynolab.results.study import Answer, PairChange, read_training, rows
from tasks.base import OTHERWISE
from tasks.runtime.stage import Platform, Stage
from tasks.runtime.system.invocation import invocation
from tasks.runtime.system.settings import Settings
from tasks.runtime.work import StageResult, Work
from tasks.shared.page_helpers import PageConfig, facts_of, page_shown

TRAININGS = ("sft", "preference")
PAIRS, REMEDIES = "pairs.jsonl", "remedies.yaml"
BESIDE = (PAIRS, REMEDIES)
"""Files of the result that a page's reader needs, which are copied with it."""

FORCES, CONTRAST = "_forces", "contrast_"
_COPIED_METRICS = {
    "kernel": "kernel",
    "foresight": "foresight",
    "probe": "probe",
    "squeezing": "squeeze",
}
"""Input → first part of the names of those of its metrics that the report returns as well."""


class ReportConfig(PageConfig):
    """Facts about the study that the page shows."""

    seed: int
    objective: ObjectiveConfig | None = Field(None, description="Objective of preference training.")
    learning_rate: float | None = Field(None, description="Learning rate of preference training.")
    missing: dict[str, str] = Field(
        {}, description="Comparison that has not run → arguments of `dynolab` that run it."
    )
    remedies: str = Field("", description="Study file of a comparison of remedies; empty: none.")


def report(work: Work[ReportConfig]) -> dict[str, float]:
    """Reads inputs `data`, `probe`, every training, and, if given, its `<training>_forces`,
    `kernel`, `audit`, `foresight`, `ledger`, `squeezing`, every `contrast_<name>` and the pages
    `mitigation` and `reproduction`.

    Results: `report.html`, `answer.txt`, `summary.json`, `pairs.jsonl`, `remedies.yaml` and
    `figures/`; the files go to MLflow, the pairs also as a table.
    Returns the summary's metrics.
    """
    from dynolab.report.study.page import write_report

    with page_shown(work):
        inputs = read_inputs(work.config, work.inputs, work.input_folder, work.short)
        summary = write_report(inputs, work.output)
        if work.config.remedies:
            (work.output / REMEDIES).write_text(with_named_arm(work.config.remedies, inputs.ledger))
    if (pairs := work.output / PAIRS).exists():
        work.log_tables(pairs=read_rows(pairs, PairChange))
    metrics: dict[str, float] = summary["metrics"]
    return metrics | {
        name: value
        for stage, metric in _COPIED_METRICS.items()
        if stage in work.inputs
        for name, value in work.inputs[stage].metrics.items()
        if name.startswith(f"{metric}/")
    }


def with_named_arm(remedies: str, ledger: LedgerReader | None) -> str:
    """The file of remedies with what the account names: the fallen answers, which the comparison
    is to follow, and training without the pairs that pulled them down.

    Beside it stand its controls: as many pairs drawn at random, others with every seed, and as many
    whose words are most like the fallen answers'. Fewer pairs alone change a training, too. There
    are none of these runs for the built-in world, of which every seed draws its own pairs.

    **Arguments:** `remedies`: the file's text, which ends with its arms, the baseline first.
    """
    from dynolab.report.ledger.fallen import fallen_accounts, similar_pairs, strongest_pullers

    named = strongest_pullers(ledger) if ledger is not None else []
    if ledger is None or not named:
        return remedies
    settings = yaml.safe_load(remedies)
    baseline = next(iter(settings["arms"].values()))
    removals = {
        "without-named": {"pairs": named},
        "without-random": {"random": len(named)},
        "without-similar": {"pairs": similar_pairs(ledger, len(named))},
    }
    if settings["data"].get("source") == "world":
        removals = {}  # each seed has a world of its own, in which an id is another pair
    # Copies: a file in which they share one object would have anchors and aliases.
    arms = {label: deepcopy(baseline) | {"filter": removal} for label, removal in removals.items()}
    fallen = grouped((account.row.split, account.row.name) for account in fallen_accounts(ledger))
    follow = {"follow": [name for names in fallen.values() for name in names[:FOLLOWED]]}
    added = textwrap.indent(yaml.safe_dump(arms, sort_keys=False), "  ") if arms else ""
    return remedies + added + yaml.safe_dump(follow)


def early_report(
    config: ReportConfig,
    names: Mapping[str, str],
    steps: Sequence[str],
    results: Mapping[str, StageResult],
    platform: Platform,
) -> str:
    """The page of the steps that have ended; empty before there are data.

    **Arguments:** `names`: input of `report` → step that makes it; `steps`: names of all steps;
    `results`: of those that have ended.
    """
    from dynolab.report.study.page import report_page_html

    inputs = {name: results[step] for name, step in names.items() if step in results}
    if "data" not in inputs:
        return ""

    def folder(name: str) -> Path:
        return platform.store.folder(inputs[name].address, inputs[name].digest)

    coming = [step for step in steps if step not in results]
    return report_page_html(read_inputs(config, inputs, folder), coming)


def read_inputs(
    config: ReportConfig,
    results: Mapping[str, StageResult],
    folder: Callable[[str], Path],
    short: str = "",
) -> ReportInputs:
    """What the page shows, from the results that are there.

    **Arguments:** `folder`: where the files of a result are; `short`: the page's own result as
    `<stage>/<key>`, if it has one.
    """

    def there(name: str) -> Path | None:
        return folder(name) if name in results else None

    data = folder("data")
    audit, squeezing, ledger, kernel, probe = map(
        there, ("audit", "squeezing", "ledger", "kernel", "probe")
    )
    return ReportInputs(
        StudyFacts(
            name=config.name,
            seed=config.seed,
            config_text=config.settings,
            rows=rows_line(results["data"].metrics),
            read_otherwise=int(results["base"].metrics.get(OTHERWISE, 0))
            if "base" in results
            else 0,
            map_command=map_command(config.objective, results, config.learning_rate),
            explore_command=f"{invocation()} explore",
            remedies_command=remedies_command(config.name) if config.remedies else "",
            designed_dose=getattr(config.objective, "chooses_dose", False),
            reports=str(_reports()),
            path_command=f"{invocation()} path {short}" if short else "",
            stages=facts_of(results, lambda name: name.removeprefix(CONTRAST).replace("_", "-")),
        ),
        trainings=tuple(
            read_training(name, folder(name), there(name + FORCES))
            for name in TRAININGS
            if name in results
        ),
        contrasts=tuple(
            read_training(name.removeprefix(CONTRAST), folder(name))
            for name in results
            if name.startswith(CONTRAST)
        ),
        kernel=read_kernel(kernel) if kernel else None,
        audit=read_audit(data, audit, there("foresight")) if audit else None,
        squeezing=read_squeezing(squeezing) if squeezing else None,
        ledger=read_ledger(ledger, data) if ledger else None,
        compared=read_compared(
            there("mitigation"),
            there("reproduction"),
            missing={
                name: f"{invocation()} {arguments}" for name, arguments in config.missing.items()
            },
        ),
        answers=rows(probe, "answers.jsonl", Answer),
        watched=rows(data, "probes.jsonl", ProbeRow),
    )


def remedies_command(name: str) -> str:
    """The command that compares the remedies of the file beside the home's copy of the page."""
    return f"{invocation()} mitigation {shlex.quote(str(_reports() / f'{name}-{REMEDIES}'))}"


def _reports() -> Path:
    """The home's folder of pages; relative where it is below the current folder."""
    folder = Settings.from_environment().reports
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def map_command(
    objective: ObjectiveConfig | None,
    inputs: Mapping[str, StageResult],
    learning_rate: float | None = None,
) -> str:
    """The command for a force map before and after preference training, without the pair's id.

    The map's step of SGD has the training's learning rate, if it is known.

    Empty if training was not on pairs, or has not ended.
    """
    if objective is None or objective.name not in PAIR_OBJECTIVES or "preference" not in inputs:
        return ""
    start = "sft" if "sft" in inputs else "base"
    data, before, after = (inputs[name].short for name in ("data", start, "preference"))
    settings: dict[str, Any] = {
        "study": None,
        "name": "pair",
        "data_result": data,
        "checkpoints": {"before": {"result": before}, "after": {"result": after}},
        "reference": "before",
        "analysis.objective": changed_settings(objective),
        # The page compares kernels too, which nobody needs here: use as few answers as possible.
        "kernel.observed_pairs": 1,
        "kernel.updating_pairs": 2,
    }
    if learning_rate is not None:
        settings["analysis.learning_rate"] = learning_rate
    parts = (shlex.quote(f"{key}={json.dumps(value)}") for key, value in settings.items())
    return " ".join([f"{invocation()} forces", *(f"--set {part}" for part in parts)])


REPORT = Stage("report", 36, report)
