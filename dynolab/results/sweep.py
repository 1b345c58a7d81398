"""What a sweep leaves: its trials, one row each."""

from __future__ import annotations

from typing import Literal

from dynolab.data.rows import Row

TrialState = Literal["complete", "pruned", "failed", "running"]
Scalar = bool | int | float | str


class TrialRow(Row):
    """One trial: what it was given, and what became of it.

    `value` is the metric that the sweep looks at; of a pruned trial the last that was known.
    """

    number: int
    state: TrialState
    settings: dict[str, Scalar]
    value: float | None = None
    mlflow_run_id: str | None = None
