"""Stage `report`: the study's page, figures and verdicts."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from tasks.runtime.stage import Stage
from tasks.runtime.work import Work


class ReportConfig(BaseModel):
    """What the page says of the study itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    seed: int
    settings: str


def report(work: Work[ReportConfig]) -> dict[str, float]:
    """Reads the results of all other stages.

    Results: `report.html`, `summary.json`, `paths.svg` and `figures/`; all go to MLflow as well.
    Returns the summary's numbers.
    """
    from dynolab.figures.inputs import StageFacts, StudyFacts, read_inputs
    from dynolab.figures.report import write_report

    with work.shown():
        stages = tuple(
            StageFacts(stage=name, key=source.key, seconds=source.metrics.get("seconds"))
            for name, source in work.inputs.items()
        )
        inputs = read_inputs(
            StudyFacts(
                name=work.config.name,
                seed=work.config.seed,
                config_text=work.config.settings,
                stages=stages,
            ),
            sft=work.input_folder("sft"),
            dpo=work.input_folder("preference"),
            forces=[work.input_folder("sft_forces"), work.input_folder("preference_forces")],
        )
        summary = write_report(inputs, work.output)
    for file in sorted(work.output.glob("*.*")):
        work.tracker.artifact(file, "report")
    for file in sorted((work.output / "figures").glob("*.html")):
        work.tracker.artifact(file, "plots")
    metrics: dict[str, float] = summary["metrics"]
    return metrics


REPORT = Stage("report", 1, report)
