"""What stages that end in a page share: the table of stages, and the way to MLflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tasks.runtime.work import Work

if TYPE_CHECKING:
    from dynolab.report.inputs.study import StageFacts


def stage_facts(work: Work[Any]) -> tuple[StageFacts, ...]:
    """The stage table's lines: every input of a page."""
    from dynolab.report.inputs.study import StageFacts

    return tuple(
        StageFacts(
            stage=name,
            key=source.key,
            seconds=source.metrics.get("seconds"),
            mlflow_run_id=source.mlflow_run_id,
        )
        for name, source in work.inputs.items()
    )


def send_page(work: Work[Any]) -> None:
    """Sends the page and what lies beside it to MLflow, and its figures."""
    for file in sorted(work.output.glob("*.*")):
        work.tracker.log_artifact(file, "report")
    for file in sorted((work.output / "figures").glob("*.html")):
        work.tracker.log_artifact(file, "plots")
