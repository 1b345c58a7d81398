"""Stage `report`: the study's page, figures and verdicts."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from tasks.runtime.stage import Stage
from tasks.runtime.work import Work

FORCES, CONTRAST = "_forces", "contrast_"


class ReportConfig(BaseModel):
    """What the page says of the study itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    seed: int
    settings: str


def report(work: Work[ReportConfig]) -> dict[str, float]:
    """Reads inputs `data`, `probe`, `kernel`, every training with its `<training>_forces`,
    `audit` and `foresight` where there are any, and `contrast_<name>`s.

    Results: `report.html`, `summary.json`, `paths.svg` and `figures/`; all go to MLflow as well.
    Returns the summary's numbers.
    """
    from dynolab.data.results import Answer
    from dynolab.data.rows import ProbeRow, read_rows
    from dynolab.figures.audit_inputs import read_audit
    from dynolab.figures.inputs import (
        ReportInputs,
        StageFacts,
        StudyFacts,
        read_kernel,
        read_training,
    )
    from dynolab.figures.report import write_report

    with work.shown():
        facts = StudyFacts(
            name=work.config.name,
            seed=work.config.seed,
            config_text=work.config.settings,
            stages=tuple(
                StageFacts(
                    stage=name.removeprefix(CONTRAST).replace("_", "-"),
                    key=source.key,
                    seconds=source.metrics.get("seconds"),
                    mlflow_run_id=source.mlflow_run_id,
                )
                for name, source in work.inputs.items()
            ),
        )
        inputs = ReportInputs(
            facts,
            trainings=tuple(
                read_training(name, work.input_folder(name), work.input_folder(name + FORCES))
                for name in work.inputs
                if name + FORCES in work.inputs
            ),
            contrasts=tuple(
                read_training(name.removeprefix(CONTRAST), work.input_folder(name))
                for name in work.inputs
                if name.startswith(CONTRAST)
            ),
            kernel=read_kernel(work.input_folder("kernel")),
            audit=read_audit(*(work.input_folder(name) for name in ("data", "audit", "foresight")))
            if "audit" in work.inputs
            else None,
            answers=tuple(read_rows(work.input_folder("probe") / "answers.jsonl", Answer)),
            watched=tuple(read_rows(work.input_folder("data") / "probes.jsonl", ProbeRow)),
        )
        summary = write_report(inputs, work.output)
    for file in sorted(work.output.glob("*.*")):
        work.tracker.artifact(file, "report")
    for file in sorted((work.output / "figures").glob("*.html")):
        work.tracker.artifact(file, "plots")
    metrics: dict[str, float] = summary["metrics"]
    return metrics | {
        name: value
        for stage in ("kernel", "foresight")
        if stage in work.inputs
        for name, value in work.inputs[stage].metrics.items()
        if name.startswith(f"{stage}/")
    }


REPORT = Stage("report", 6, report)
