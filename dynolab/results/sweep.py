"""The rows of a sweep: one per trial."""

from __future__ import annotations

from typing import Literal

from dynolab.data.rows import Row

TrialState = Literal["complete", "pruned", "failed", "running"]
Scalar = bool | int | float | str


class TrialRow(Row):
    """Settings and outcome of one trial.

    `value` is the metric of the sweep; for a pruned trial, its last known value.
    """

    number: int
    state: TrialState
    settings: dict[str, Scalar]
    value: float | None = None
    mlflow_run_id: str | None = None
