"""What an MLflow server has of a project."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class History:
    """One run: its id, status, and (step, value) of every metric as often as they are there."""

    run_id: str
    status: str
    values: Mapping[str, list[tuple[int, float]]]


OWN = {"train/examples_per_s", "probe/seconds", "result/resumed_from", "result/seconds"}
"""Metrics whose values differ between two runs of one training."""


def finished_history(uri: str, project: str) -> History:
    """The one MLflow run of preference training; it has ended well."""
    (history,) = histories(uri, project, "preference")
    assert history.status == "FINISHED"
    return history


def lost(history: History, undisturbed: History, *, up_to: float = math.inf) -> list[str]:
    """Values that are missing, doubled, or not those of the undisturbed training.

    Of `OWN` metrics the steps alone are compared; steps beyond `up_to` are not.
    """
    kept, wanted = (Counter(_entries(run, up_to)) for run in (history, undisturbed))
    assert wanted
    missing = [f"{entry} is missing" for entry in (wanted - kept).elements()]
    return missing + [f"{entry} is surplus" for entry in (kept - wanted).elements()]


def _entries(history: History, up_to: float) -> Iterator[str]:
    """Values as text: NaN equals nothing."""
    for name, values in history.values.items():
        for step, value in values:
            if step <= up_to:
                yield f"{name} of step {step}" + ("" if name in OWN else f" = {value!r}")


def histories(uri: str, project: str, name: str) -> list[History]:
    """All runs whose name ends so in the project; the address may hold a login."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(project)
    assert experiment is not None
    ends = f"attributes.run_name LIKE '%{name}'"
    return [
        History(
            run.info.run_id,
            run.info.status,
            {
                metric: [
                    (at.step, at.value) for at in client.get_metric_history(run.info.run_id, metric)
                ]
                for metric in run.data.metrics
            },
        )
        for run in client.search_runs([experiment.experiment_id], ends)
    ]
