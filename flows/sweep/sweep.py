"""The sweep: begins trials, runs them, and writes a page of their results."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from dynolab.errors import ConfigError, DynolabError
from dynolab.store import Claim, Store
from flows.sweep.memory import SweepStudy
from flows.sweep.parameters import SweepParameters, check_sweep
from flows.sweep.trials import Launch, Started, choose_launch
from tasks.runtime.open_platform import open_platform
from tasks.runtime.stage import Platform

POLL_SECONDS = 2.0


def sweep(parameters: SweepParameters) -> dict[str, Any]:
    """Runs the trials of a sweep, or the remaining ones of an interrupted sweep.

    Returns the trials as rows.
    """
    check_sweep(parameters)
    study = SweepStudy(parameters)
    params = parameters.model_dump(mode="json", exclude={"space"}) | {
        "space": {
            name: dimension.model_dump(mode="json", exclude_none=True)
            for name, dimension in parameters.space.items()
        },
    }
    with (
        open_platform(
            study=parameters.name,
            project=parameters.project,
            tags={"flow": "sweep", "sweep": parameters.name},
            params=params,
        ) as platform,
        alone(study, platform.store),
    ):
        run_trials(study, choose_launch(parameters, platform))
        return report(study, platform)


@contextmanager
def alone(study: SweepStudy, store: Store) -> Iterator[None]:
    """Claims the sweep for this process; takes over the claim of a dead one.

    **Raises** `ConfigError` if another process runs the sweep.
    """
    with Claim(store.files, f"sweeps/{study.name}/CLAIM") as claim:
        if holder := claim.acquire_or_holder():
            raise ConfigError(
                "name",
                study.parameters.name,
                f"{holder} runs this sweep; wait for it to end, or end it and start again",
            )
        yield


def run_trials(study: SweepStudy, launch: Launch) -> None:
    """Runs every trial, at most `concurrency` at once; unfinished ones of an earlier run first.

    Cancels running trials when the sweep ends; the next run of the sweep resumes them.
    """
    waiting, running = study.unfinished(), dict[int, Started]()
    try:
        while _fill(study, waiting, running, launch):
            for number, started in list(running.items()):
                if started.ended():
                    del running[number]
                    _settle(study, number, waiting)
            if running:
                time.sleep(POLL_SECONDS)
    finally:
        with ExitStack() as ending:  # cancels all, even if one cannot be cancelled
            for started in running.values():
                ending.callback(started.cancel)


def _fill(
    study: SweepStudy, waiting: list[int], running: dict[int, Started], launch: Launch
) -> bool:
    """Starts trials up to `concurrency`; False if none runs and none is left."""
    while len(running) < study.parameters.concurrency:
        number = waiting.pop(0) if waiting else study.ask()
        if number is None:
            break
        running[number] = launch(study, number)
    return bool(running)


def _settle(study: SweepStudy, number: int, waiting: list[int]) -> None:
    """Queues a trial again whose process died before recording its end, at most `retries` times."""
    if study.has_ended(number):
        return
    if study.attempts(number) <= study.parameters.retries:
        waiting.append(number)
    else:
        study.fail(number)


def report(study: SweepStudy, platform: Platform) -> dict[str, Any]:
    """Returns the trials as rows; logs the best trial and the page to MLflow."""
    from dynolab.report.comparison.sweep import write_sweep_page

    rows, best, run = study.rows(), study.best(), platform.study
    assert run is not None
    folder = platform.settings.reports
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / f"{study.parameters.name}.html"
    write_sweep_page(
        page,
        name=study.parameters.name,
        metric=study.parameters.metric,
        direction=study.parameters.direction,
        rows=rows,
    )
    run.log_artifact(page, "report")
    states = [row.state for row in rows]
    run.log_metrics(
        {f"sweep/{name}": float(states.count(name)) for name in ("complete", "pruned", "failed")}, 0
    )
    if best is None:
        raise SweepFailed(study.parameters.name, len(rows))
    run.log_metrics({study.parameters.metric: best.value or 0.0}, 0)
    run.set_tags(
        {"best.trial": str(best.number)}
        | {f"best.{name}": str(value) for name, value in best.settings.items()}
    )
    return {"trials": [row.model_dump(mode="json") for row in rows], "best": best.number}


class SweepFailed(DynolabError):
    """No trial of a sweep was completed."""

    def __init__(self, name: str, trials: int) -> None:
        super().__init__(f"sweep {name}: none of {trials} trials was completed; see their runs")
