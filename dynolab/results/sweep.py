"""The rows of a sweep: one per trial."""

from __future__ import annotations

from collections.abc import Sequence
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


def shortest_names(settings: Sequence[str]) -> dict[str, str]:
    """Dotted names of settings → their last parts, as many as tell them apart: `steps`, or
    `sft.steps` and `preference.steps`."""
    parts = {name: name.split(".") for name in settings}
    names = {}
    for name, path in parts.items():
        others = [other for other_name, other in parts.items() if other_name != name]
        count = 1
        while count < len(path) and any(other[-count:] == path[-count:] for other in others):
            count += 1
        names[name] = ".".join(path[-count:])
    return names
