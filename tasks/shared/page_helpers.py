"""Helpers for page stages: inputs' folders and metrics, the stage table, upload to MLflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dynolab.report.inputs.study import StageFacts
from tasks.runtime.track.mlflow_pages import PAGE_FOLDER
from tasks.runtime.work import StageConfig, StageResult, Work


class PageConfig(StageConfig):
    """Facts about the run that every page shows; `settings` are the flow's, as YAML."""

    name: str
    settings: str


def input_folder(work: Work[Any], name: str) -> Path | None:
    """Folder of an input; None without that input."""
    return work.input_folder(name) if name in work.inputs else None


def facts_of(
    results: Mapping[str, StageResult], label: Callable[[str], str] = str
) -> tuple[StageFacts, ...]:
    """Rows of the stage table of a page that was made from these results; `label` turns a result's
    name into a title."""
    return tuple(
        StageFacts(
            stage=label(name),
            key=source.key,
            seconds=source.metrics.get("seconds"),
            mlflow_run_id=source.mlflow_run_id,
        )
        for name, source in results.items()
    )


def input_metrics(work: Work[Any], *names: str) -> dict[str, float]:
    """Metrics of the inputs `names` (default: all), without their durations."""
    return {
        metric: value
        for name in names or work.inputs
        for metric, value in work.inputs[name].metrics.items()
        if metric != "seconds"
    }


@contextmanager
def page_shown(work: Work[Any]) -> Iterator[None]:
    """The progress of the block, which makes a page; then sends the page to MLflow."""
    work.tracker.wait_created(0)  # plotly takes a pandas that another thread has half imported
    with work.shown():
        yield
    send_page(work)


def send_page(work: Work[Any]) -> None:
    """Sends the page, which holds its figures, and the files beside it to MLflow."""
    for file in sorted(work.output.glob("*.*")):
        work.tracker.log_artifact(file, PAGE_FOLDER)
