"""The rows of the provable part of squeezing: one softmax, one step, many random cases."""

from __future__ import annotations

from typing import Literal

from dynolab.data.rows import Row


class CaseCount(Row):
    """How many random cases violate a statement: `counts.jsonl`.

    If a statement concerns several classes of a case, the case counts with the share of them that
    violate it; `cases` counts the cases with at least one such class.
    """

    statement: str
    classes: int
    cases: int
    violations: float


class Panel(Row):
    """Log-probabilities before and after some steps of softmax regression: `panels.jsonl`."""

    name: str
    classes: int
    label: int
    steps: int
    learning_rate: float
    before: tuple[float, ...]
    after: tuple[float, ...]


class ShapePoint(Row):
    """Effect of one push on distributions of one shape: `shapes.jsonl`.

    `shape` names the quantity that is varied and `value` its value: the factor on random logits, or
    p_y. Means over cases with 95% intervals: `fall`, the share of the other classes that fall,
    and `gain`, Δ log p of the likeliest other class in nats.
    """

    shape: Literal["sharpness", "label_probability"]
    classes: int
    value: float
    cases: int
    fall: float
    fall_low: float
    fall_high: float
    gain: float
    gain_low: float
    gain_high: float


class StepPath(Row):
    """Δ log p of some classes of one distribution by the size of the push: `step_paths.jsonl`."""

    role: str
    probability: float
    steps: tuple[float, ...]
    change: tuple[float, ...]
