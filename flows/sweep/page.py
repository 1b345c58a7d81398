"""Shows the trials so far: on the sweep's page, in MLflow's run and in Prefect's."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from dynolab.errors import DynolabError
from dynolab.results.sweep import TrialRow
from flows.sweep.trials import SweepStudy, short
from tasks.runtime.stage import Platform
from tasks.runtime.track.mlflow_pages import DESCRIPTION_TAG, PAGE_FOLDER, compare_page, run_page
from tasks.runtime.track.progress import inside_prefect_run, slug

log = logging.getLogger(__name__)


def report(study: SweepStudy, platform: Platform) -> dict[str, Any]:
    """Returns the trials as rows; logs the best trial to MLflow."""
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
    run.log_metrics({name: best[0].values[name] for name in study.parameters.objectives}, 0)
    # The settings only of a single best trial: those of a Pareto front differ.
    run.set_tags(
        {"best.trial": ", ".join(str(row.number) for row in best)}
        | {f"best.{name}": str(value) for name, value in best[0].settings.items() if len(best) == 1}
    )
    return {
        "trials": [row.model_dump(mode="json", exclude={"paths"}) for row in rows],
        "best": [row.number for row in best],
        "compare": compare_address,
    }


def show_trials(study: SweepStudy, platform: Platform) -> str:
    """Writes the page of the trials so far; MLflow's run and Prefect's lead to it.

    They also say which trials are best; Prefect's run has a table of all. **Returns** the address
    of MLflow's comparison of the trials; empty for fewer than two.
    """
    from dynolab.report.comparison.sweep import write_sweep_page

    parameters, rows, best = study.parameters, study.rows(), study.best()
    run = platform.parent_run
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
    text = f"{sum(row.state != 'running' for row in rows)} of {parameters.total} trials have ended."
    # Each is put in front of the text, which ends with the count.
    for row in best:
        point = ", ".join(
            f"{shown} = {short(row.settings[name])}" for name, shown in parameters.tried.items()
        )
        reached = ", ".join(f"{name} {short(row.values[name])}" for name in parameters.objectives)
        text = f"Best: {reached}, with {point}. {text}"
    log.info(text)
    if run:
        run.log_artifact(page, PAGE_FOLDER)
        if run.run:
            links = {"Report": run_page(run.run, f"{PAGE_FOLDER}/{page.name}"), "Compare": compare}
            # MLflow's own pages lead on without its address, Prefect's with it.
            run.set_tags({DESCRIPTION_TAG: f"{text} {_linked(links, '')}"})
            text += f" {_linked(links, f'{run.server}/')}"
    if inside_prefect_run():
        _show_in_prefect(study, rows, best, text)
    return compare_address


def _linked(pages: Mapping[str, str], server: str) -> str:
    return " · ".join(f"[{name}]({server}{page})" for name, page in pages.items() if page)


def _show_in_prefect(
    study: SweepStudy, rows: Sequence[TrialRow], best: Sequence[TrialRow], text: str
) -> None:
    """Makes or updates the run's table of trials in Prefect."""
    from prefect.artifacts import create_table_artifact
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import ArtifactUpdate

    table = [
        {
            "trial": f"{row.number}{' (best)' if row in best else ''}",
            "ended": row.state,
            **{shown: row.settings[name] for name, shown in study.parameters.tried.items()},
            **{name: float(f"{value:.5g}") for name, value in row.values.items()},
        }
        for row in rows
    ]
    try:
        if study.artifact is None:
            key = f"trials-{slug(study.parameters.name)}"
            study.artifact = create_table_artifact(table, key, text)
        else:
            update = ArtifactUpdate(data=json.dumps(table), description=text)
            get_client(sync_client=True).update_artifact(study.artifact, update)
    except Exception as error:  # Prefect's outage must not end the sweep
        log.warning("the table of trials could not be published in Prefect: %s", error)
