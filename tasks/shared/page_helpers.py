"""What stages that end in a page share: inputs' folders and numbers, stages, the way to MLflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.runtime.work import StageConfig, Work

if TYPE_CHECKING:
    from dynolab.report.inputs.files import StageFacts


class PageConfig(StageConfig):
    """What a page says of the run itself; `settings` are the flow's, as YAML."""

    name: str
    settings: str


def input_folder(work: Work[Any], name: str) -> Path | None:
    """Folder of an input, where there is one."""
    return work.input_folder(name) if name in work.inputs else None


def stage_facts(work: Work[Any], named: Callable[[str], str] = str) -> tuple[StageFacts, ...]:
    """The stage table's lines: every input of a page, by what `named` makes of its name."""
    from dynolab.report.inputs.files import StageFacts

    return tuple(
        StageFacts(
            stage=named(name),
            key=source.key,
            seconds=source.metrics.get("seconds"),
            mlflow_run_id=source.mlflow_run_id,
        )
        for name, source in work.inputs.items()
    )


def input_metrics(work: Work[Any], *names: str) -> dict[str, float]:
    """The numbers of the inputs `names`, of all without them; not how long they took."""
    return {
        metric: value
        for name in names or work.inputs
        for metric, value in work.inputs[name].metrics.items()
        if metric != "seconds"
    }


def send_page(work: Work[Any]) -> None:
    """Sends the page and what lies beside it to MLflow, and its figures."""
    for file in sorted(work.output.glob("*.*")):
        work.tracker.log_artifact(file, "report")
    for file in sorted((work.output / "figures").glob("*.html")):
        work.tracker.log_artifact(file, "plots")
