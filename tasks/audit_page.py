"""Stage `audit-page`: the page of an audit."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from tasks.runtime.stage import Stage
from tasks.runtime.work import Work


class AuditPageConfig(BaseModel):
    """What the page says of the audit itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    objective: str
    settings: str


def audit_page(work: Work[AuditPageConfig]) -> dict[str, float]:
    """Reads inputs `data`, `audit`, and `foresight` where training is done.

    Results: `audit.html` and `figures/`; both go to MLflow as well. Returns the inputs' numbers.
    """
    from dynolab.report.inputs.audit import read_audit
    from dynolab.report.inputs.study import StageFacts
    from dynolab.report.pages.audit import AuditPageInputs, write_audit_page

    config = work.config
    with work.shown():
        known = "foresight" in work.inputs
        inputs = AuditPageInputs(
            name=config.name,
            objective=config.objective,
            audit=read_audit(
                work.input_folder("data"),
                work.input_folder("audit"),
                work.input_folder("foresight") if known else None,
            ),
            settings=config.settings,
            stages=tuple(
                StageFacts(
                    stage=name,
                    key=source.key,
                    seconds=source.metrics.get("seconds"),
                    mlflow_run_id=source.mlflow_run_id,
                )
                for name, source in work.inputs.items()
            ),
        )
        write_audit_page(inputs, work.output)
    work.tracker.log_artifact(work.output / "audit.html", "report")
    for file in sorted((work.output / "figures").glob("*.html")):
        work.tracker.log_artifact(file, "plots")
    shown = ("audit/", "foresight/")
    return {
        name: value
        for source in work.inputs.values()
        for name, value in source.metrics.items()
        if name.startswith(shown)
    }


AUDIT_PAGE = Stage("audit-page", 1, audit_page)
