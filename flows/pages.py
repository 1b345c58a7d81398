"""The pages in the home's `reports`: while a flow runs, and when it has ended."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from flows.flow import Plan, StagedFlow
from tasks.runtime.stage import Platform
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.mlflow_pages import PAGE_FOLDER, run_page
from tasks.runtime.track.outbox import Run
from tasks.runtime.track.prefect_progress import link_report
from tasks.runtime.work import StageResult

log = logging.getLogger(__name__)

Results = Mapping[str, StageResult]


def page_of(flow: StagedFlow[Any], name: str, settings: Settings) -> Path:
    """Where the page of a run is."""
    return settings.reports / f"{name}{Path(flow.file).suffix}"


def copy_page(flow: StagedFlow[Any], name: str, results: Results, platform: Platform) -> None:
    """Copies a finished run's page, with the files that its reader needs beside it."""
    result, page = results[flow.page], page_of(flow, name, platform.settings)
    folder = platform.store.folder(result.address, result.digest)
    page.parent.mkdir(parents=True, exist_ok=True)
    _replace(page, partial(shutil.copyfile, folder / flow.file))
    for beside in flow.beside:
        copy = page.with_name(f"{name}-{beside}")
        if (folder / beside).exists():
            _replace(copy, partial(shutil.copyfile, folder / beside))
        else:
            copy.unlink(missing_ok=True)


def lead_to_page(
    flow: StagedFlow[Any],
    name: str,
    results: Results,
    trainings: Sequence[str],
    platform: Platform,
) -> None:
    """Leads to a finished run's page in MLflow: from its run there, and from its run in Prefect.

    `trainings`: the steps that the run's charts show.
    """
    made_by, study = results[flow.page].mlflow_run_id, None
    if made_by is None or not flow.file.endswith(".html"):
        return
    artifact, experiment = f"{PAGE_FOLDER}/{flow.file}", "0"
    if platform.has_worked and (study := platform.study):
        runs = [run for step in trainings if (run := results[step].mlflow_run_id)]
        study.describe(runs if trainings else None, page=(made_by, artifact))
        if study.run:
            experiment = study.run.experiment_id
    server = study.server if study else platform.settings.mlflow_tracking_uri
    if server is not None:
        # MLflow finds a run by its id alone; only the frame of the page is the experiment's.
        page = run_page(Run(made_by, experiment, ""), artifact)
        link_report(name, f"{server.rstrip('/')}/{page}")


def write_early_page(
    flow: StagedFlow[Any], plan: Plan, results: Results, platform: Platform
) -> None:
    """Writes the page of the results so far; a page that cannot be made yet is only logged."""
    if plan.early is None:
        return
    try:
        content = plan.early(results, platform)
        page = page_of(flow, plan.parameters.name, platform.settings)
        page.parent.mkdir(parents=True, exist_ok=True)
        if not content:
            return
        for end, text in plan.beside.items():
            _write(page.with_name(f"{plan.parameters.name}-{end}"), text)
        _write(page, content)
    except Exception:  # the run is worth more than its early page
        log.warning("cannot write the page of the results so far", exc_info=True)


def _write(file: Path, text: str) -> None:
    _replace(file, lambda aside: aside.write_text(text, encoding="utf-8", newline="\n"))


def _replace(page: Path, write: Callable[[Path], object]) -> None:
    """Writes a file aside and moves it into place, so that no reader sees half of it."""
    aside = page.with_name(f".{page.name}-{uuid4().hex[:8]}")
    try:
        write(aside)
        aside.replace(page)
    finally:
        aside.unlink(missing_ok=True)
