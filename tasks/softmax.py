"""Stage `softmax`: checks what is provable about squeezing on random cases, with pictures."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work

STEP_SIZES = tuple(float(size) for size in np.linspace(0, 10, 41))


Classes = Annotated[int, Field(ge=3)]


class SoftmaxConfig(StageConfig):
    """How many random cases, with how many classes."""

    seed: int = Field(0, ge=0)
    cases: int = Field(20_000, ge=1, description="Random cases for every statement.")
    classes: tuple[Classes, ...] = Field(
        (5, 50, 1_000), min_length=1, description="Numbers of classes V of the cases."
    )
    shown: tuple[Classes, ...] = Field(
        (50, 1_000), min_length=1, description="Numbers of classes of the pictures."
    )
    shape_cases: int = Field(
        1_000, ge=2, description="Distributions averaged at each point of a curve."
    )


def try_cases(work: Work[SoftmaxConfig]) -> dict[str, float]:
    """Results: `counts.jsonl`, `panels.jsonl`, `shapes.jsonl`, `step_paths.jsonl`."""
    from dynolab.squeezing.cases import count_violations
    from dynolab.squeezing.panels import panels, shape_points, step_paths

    config = work.config
    with work.shown():
        counts = [
            count_violation
            for classes in config.classes
            for count_violation in count_violations(config.cases, classes, config.seed)
        ]
        pictures = [panel for classes in config.shown for panel in panels(classes, config.seed)]
        shapes = [
            shape_point
            for classes in config.shown
            for shape_point in shape_points(config.shape_cases, classes, config.seed)
        ]
        paths = step_paths(config.shown[0], config.seed, STEP_SIZES)
        work.write_tables(counts=counts, panels=pictures, shapes=shapes, step_paths=paths)
    metrics = {
        f"violations/{count.statement}/{count.classes}": count.violations / count.cases
        for count in counts
    }
    work.log_tables(counts=counts, shapes=shapes)
    return work.log_metrics(metrics)


SOFTMAX = Stage("softmax", 2, try_cases)
