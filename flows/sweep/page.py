"""Shows the trials so far: on the sweep's page, in MLflow's run and in Prefect's."""

from __future__ import annotations

import logging
from typing import Any

from dynolab.errors import DynolabError
from flows.sweep.trials import SweepStudy, short
from tasks.runtime.stage import Platform
from tasks.runtime.track.mlflow_pages import (
    DESCRIPTION_TAG,
    PAGE_FOLDER,
    SUMMARY,
    compare_page,
    literal,
    run_page,
)
from tasks.runtime.track.progress import CLOSE_SECONDS, publish_links

log = logging.getLogger(__name__)


def report(study: SweepStudy, platform: Platform) -> dict[str, Any]:
    """Returns the trials as rows, and as a table to print.

    **Raises** `DynolabError` if none was completed.
    """
    compare_address = show_trials(study, platform)
    rows, best, run = study.rows(), study.best(), platform.parent_run
    assert run is not None
    states = [row.state for row in rows]
    run.log_metrics(
        {f"sweep/{name}": float(states.count(name)) for name in ("complete", "pruned", "failed")}, 0
    )
    if not best:
        raise DynolabError(
            f"sweep {study.parameters.name}: none of {len(rows)} trials was completed; see their "
            "runs"
        )
    return {
        "trials": [row.model_dump(mode="json", exclude={"paths"}) for row in rows],
        "best": [row.number for row in best],
        "compare": compare_address,
        "table": trial_table(study),
    }


def show_trials(study: SweepStudy, platform: Platform) -> str:
    """Writes the page of the trials so far; MLflow's run and Prefect's lead to it.

    They also say which trials are best; Prefect's run has a table of all in its summary.
    **Returns** the address of MLflow's comparison of the trials; empty for fewer than two.
    """
    from dynolab.report.comparison.sweep import write_sweep_page

    parameters, rows, best = study.parameters, study.rows(), study.best()
    run, links = platform.parent_run, dict[str, str]()
    ids = [row.mlflow_run_id for row in rows if row.mlflow_run_id]
    compare = compare_page(run.run, ids) if run and run.run and len(ids) > 1 else ""  # its fragment
    compare_address = f"{run.server}/{compare}" if run and compare else ""
    page = platform.settings.reports / f"{parameters.name}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    write_sweep_page(
        page,
        name=parameters.name,
        objectives=parameters.objectives,
        settings=parameters.tried,
        rows=rows,
        best=[row.number for row in best],
        importances=study.importances(),
        compare=compare_address,
    )
    ended = sum(row.state != "running" for row in rows)
    text = f"{ended} of {parameters.total} trials have ended."
    # Each is put in front of the text, which ends with the count.
    for row in best:
        point = ", ".join(
            f"{shown} = {short(row.settings[name])}" for name, shown in parameters.tried.items()
        )
        reached = ", ".join(f"{name} {short(row.values[name])}" for name in parameters.objectives)
        text = f"Best: {reached}, with {point}. {text}"
    log.info(text)
    if run and best:
        # The best so far, over the trials that have ended.
        run.log_metrics(best[0].values, ended)
        # The settings only of a single best trial: those of a Pareto front differ.
        settings = best[0].settings if len(best) == 1 else {}
        run.set_tags(
            {"best.trial": ", ".join(str(row.number) for row in best)}
            | {f"best.{name}": str(value) for name, value in settings.items()}
        )
    if run:
        run.log_artifact(page, PAGE_FOLDER)
        if run.run:
            links = {"Report": run_page(run.run, f"{PAGE_FOLDER}/{page.name}"), "Compare": compare}
            pages = {name: page for name, page in links.items() if page}
            linked = " · ".join(f"[{name}]({page})" for name, page in pages.items())
            run.set_tags({DESCRIPTION_TAG: f"{text} {linked}"})
            # MLflow's own pages lead on without its address, Prefect's with it.
            links = {name: f"{run.server}/{page}" for name, page in pages.items()}
    head, *trials = trial_table(study)
    rows_of_table = [map(literal, row) for row in trials]
    cells = [map(literal, head), ["---"] * len(head), *rows_of_table]
    table = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    publish_links(
        SUMMARY,
        parameters.name,
        links,
        [literal(text), table],
        run,
        charts=True,
        seconds=CLOSE_SECONDS,
    )
    return compare_address


def trial_table(study: SweepStudy) -> list[list[str]]:
    """Head and rows of a table of the trials: the metrics that decide, then the settings."""
    metrics, tried = study.parameters.objectives, study.parameters.tried
    best = [row.number for row in study.best()]
    table = [["trial", "ended", *metrics, *tried.values()]]
    for row in study.rows():
        number = f"{row.number} best" if row.number in best else f"{row.number}"
        values = [short(row.values.get(name, "")) for name in metrics]
        table.append([number, row.state, *values, *(short(row.settings[name]) for name in tried)])
    return table
