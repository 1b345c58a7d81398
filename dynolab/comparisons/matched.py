"""Trainings compared at the same margin, so that none does better by learning less.

A remedy that halves the push widens the gap less, but learns less of the pairs, too. What counts is
the gap that it has, and the chosen answer, where it has learned as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from jaxtyping import Float
from numpy import ndarray

from dynolab.comparisons.arm_table import ArmTable
from dynolab.grouping import grouped
from dynolab.probes.paths import learning_paths
from dynolab.results.arms import ComparedArms, MarginPoint
from dynolab.results.study import ARGMAX, ProbeScore
from dynolab.statistics import mean_interval

LEAST_MARGIN = 0.25
"""Nats; where less was learned there is nothing to compare."""


def margin_path(scores: Sequence[ProbeScore]) -> tuple[MarginPoint, ...]:
    """The way of a training's mean pair, probe by probe, in nats since its start.

    Empty unless chosen, rejected and y* of training pairs were probed twice or more.
    """
    paths = learning_paths(scores, "train")
    if paths is None or not {"chosen", "rejected", ARGMAX} <= paths.logp.keys():
        return ()
    chosen, rejected, best = (paths.since_start(kind) for kind in ("chosen", "rejected", ARGMAX))
    return tuple(
        MarginPoint(step=int(step), margin=margin, gap=gap, chosen=up)
        for step, margin, gap, up in zip(
            paths.steps,
            _means(chosen - rejected),
            _means(best - chosen),
            _means(chosen),
            strict=True,
        )
    )


def _means(values: Float[ndarray, "steps pairs"]) -> list[float]:
    return [mean_interval(row).mean for row in values]


def reach(path: Sequence[MarginPoint]) -> float:
    """The largest margin of a path, in nats."""
    return max((point.margin for point in path), default=0.0)


def at_margin(
    path: Sequence[MarginPoint], margin: float, name: Literal["gap", "chosen", "step"]
) -> float:
    """A path's figure where its margin first reaches `margin`, linear between probes; else nan."""
    for before, after in pairwise(path):
        if before.margin < margin <= after.margin:
            share = (margin - before.margin) / (after.margin - before.margin)
            start, end = getattr(before, name), getattr(after, name)
            return float(start + share * (end - start))
    return float("nan")


def matched_figures(own: Sequence[MarginPoint], other: Sequence[MarginPoint]) -> dict[str, float]:
    """How a training differs from another at the largest margin that both reach.

    `matched/gap` and `matched/chosen`: differences in nats; `matched/steps`: how many times the
    other's steps it took there; `matched/margin`: that margin. Empty if it is below
    `LEAST_MARGIN`.
    """
    margin = min(reach(own), reach(other))
    if margin < LEAST_MARGIN:
        return {}
    mine, others = (
        {name: at_margin(path, margin, name) for name in ("gap", "chosen", "step")}
        for path in (own, other)
    )
    return {
        "matched/gap": mine["gap"] - others["gap"],
        "matched/chosen": mine["chosen"] - others["chosen"],
        "matched/steps": mine["step"] / others["step"],
        "matched/margin": margin,
    }


def table_of(compared: ComparedArms) -> ArmTable:
    """Every run's figures, seed by seed, with its `matched_figures` against the baseline.

    The baseline's own `matched/gap` and `matched/chosen` are zero, so that a difference from it is
    that at the same margin.
    """
    by_name = grouped(
        item for runs in compared.runs.values() for run in runs for item in run.counts.items()
    )
    counts = {name: min(own) for name, own in by_name.items()}
    matched = dict.fromkeys(("matched/gap", "matched/chosen"), counts.get("train/margin", 0))
    base = compared.runs[compared.baseline]
    values = {
        arm: [
            run.figures
            | (
                dict.fromkeys(matched, 0.0)
                if arm == compared.baseline
                else matched_figures(run.path, other.path)
            )
            for run, other in zip(runs, base, strict=True)
        ]
        for arm, runs in compared.runs.items()
    }
    return ArmTable(values, counts=counts | matched)
