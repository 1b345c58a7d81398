"""Stage `report`: the study's page, figures and verdicts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from pydantic import Field

from dynolab.data.rows import read_rows
from dynolab.data.sources.config import rows_line
from dynolab.objectives.registry import PAIR_OBJECTIVES, ObjectiveConfig
from dynolab.results.study import PairChange
from tasks.runtime.stage import Stage
from tasks.runtime.system.invocation import invocation
from tasks.runtime.work import StageResult, Work
from tasks.shared.page_helpers import PageConfig, input_folder, send_page, stage_facts

TRAININGS = ("sft", "preference")
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
    missing: dict[str, str] = Field(
        {}, description="Comparison that has not run → arguments of `dynolab` that run it."
    )


def report(work: Work[ReportConfig]) -> dict[str, float]:
    """Reads inputs `data`, `probe`, every training, and, if given, its `<training>_forces`,
    `kernel`, `audit`, `foresight`, `squeezing`, every `contrast_<name>` and the pages `mitigation`
    and `reproduction`.

    Results: `report.html`, `summary.json`, `paths.svg`, `pairs.jsonl` and `figures/`; all go to
    MLflow as well, the pairs also as a table.
    Returns the summary's metrics.
    """
    from dynolab.report.inputs.audit import read_audit
    from dynolab.report.inputs.ledger import read_ledger
    from dynolab.report.inputs.study import (
        ReportInputs,
        StudyFacts,
        read_answers,
        read_compared,
        read_kernel,
        read_squeezing,
        read_training,
        read_watched,
    )
    from dynolab.report.study.page import write_report

    config, folder = work.config, work.input_folder
    with work.shown():
        data, squeezing = folder("data"), input_folder(work, "squeezing")
        inputs = ReportInputs(
            StudyFacts(
                name=config.name,
                seed=config.seed,
                config_text=config.settings,
                rows=rows_line(work.inputs["data"].metrics),
                map_command=map_command(config.objective, work.inputs),
                stages=stage_facts(
                    work, lambda name: name.removeprefix(CONTRAST).replace("_", "-")
                ),
            ),
            trainings=tuple(
                read_training(name, folder(name), input_folder(work, name + FORCES))
                for name in TRAININGS
                if name in work.inputs
            ),
            contrasts=tuple(
                read_training(name.removeprefix(CONTRAST), folder(name))
                for name in work.inputs
                if name.startswith(CONTRAST)
            ),
            kernel=read_kernel(folder("kernel")) if "kernel" in work.inputs else None,
            audit=read_audit(data, folder("audit"), folder("foresight"))
            if "audit" in work.inputs
            else None,
            squeezing=read_squeezing(squeezing) if squeezing else None,
            ledger=read_ledger(folder("ledger"), data) if "ledger" in work.inputs else None,
            compared=read_compared(
                input_folder(work, "mitigation"),
                input_folder(work, "reproduction"),
                missing={
                    name: f"{invocation()} {arguments}"
                    for name, arguments in config.missing.items()
                },
            ),
            answers=read_answers(folder("probe")),
            watched=read_watched(data),
        )
        summary = write_report(inputs, work.output)
    if (pairs := work.output / "pairs.jsonl").exists():
        work.log_tables(pairs=read_rows(pairs, PairChange))
    send_page(work)
    metrics: dict[str, float] = summary["metrics"]
    return metrics | {
        name: value
        for stage, metric in _COPIED_METRICS.items()
        if stage in work.inputs
        for name, value in work.inputs[stage].metrics.items()
        if name.startswith(f"{metric}/")
    }


def map_command(objective: ObjectiveConfig | None, inputs: Mapping[str, StageResult]) -> str:
    """The command for a force map before and after preference training, without the pair's id.

    Empty if training was not on pairs.
    """
    if objective is None or objective.name not in PAIR_OBJECTIVES:
        return ""
    start = "sft" if "sft" in inputs else "base"
    data, before, after = (inputs[name].short for name in ("data", start, "preference"))
    chosen = {"name": objective.name} | objective.model_dump(mode="json", exclude_defaults=True)
    settings = {
        "study": None,
        "name": "pair",
        "data_result": data,
        "checkpoints": {"before": {"result": before}, "after": {"result": after}},
        "reference": "before",
        "analysis.objective": chosen,
        # The page compares kernels too, which nobody needs here: use as few answers as possible.
        "kernel.observed_pairs": 1,
        "kernel.updating_pairs": 2,
    }
    parts = (shlex.quote(f"{key}={json.dumps(value)}") for key, value in settings.items())
    return " ".join([f"{invocation()} forces", *(f"--set {part}" for part in parts)])


REPORT = Stage("report", 12, report)
