"""The rows of the provable part of squeezing: one softmax, one step, many random cases."""

from __future__ import annotations

from typing import Literal

from dynolab.data.rows import Row


class CaseCount(Row):
    """How many random cases violate a statement: `counts.jsonl`.

    A case that a statement makes about several classes counts by the share of them that violate
    it; `cases` are those that have such classes.
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
    """What one push does to distributions of one shape: `shapes.jsonl`.

    `shape` names what is varied and `value` is where it stands: the factor on random logits, or
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
