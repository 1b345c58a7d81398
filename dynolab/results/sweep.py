"""The rows of a sweep: one per trial."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dynolab.data.rows import Row

TrialState = Literal["complete", "pruned", "failed", "running"]
Scalar = bool | int | float | str


class TrialRow(Row):
    """Settings and outcome of one trial.

    `values`: metrics at its end by name; of a pruned trial, the last known one. `paths`: metric →
    steps of the training and the values there.
    """

    number: int
    state: TrialState
    settings: dict[str, Scalar]
    values: dict[str, float] = Field(default_factory=dict)
    paths: dict[str, list[tuple[int, float]]] = Field(default_factory=dict)
    mlflow_run_id: str | None = None
