"""Trainings compared at the same margin, so that none does better by learning less.

A remedy that halves the push widens the gap less, but learns less of the pairs, too. What counts is
the gap that it has, and the chosen answer, where it has learned as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from dynolab.comparisons.arm_table import ArmTable
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
    heldout = _mean_of_heldout(scores)
    chosen, best = paths.since_start("chosen"), paths.since_start(ARGMAX)
    margins, gaps = chosen - paths.since_start("rejected"), best - chosen
    points = []
    for step, margin, gap, up in zip(paths.steps, margins, gaps, chosen, strict=True):
        point = MarginPoint(
            step=int(step),
            margin=mean_interval(margin).mean,
            gap=mean_interval(gap).mean,
            chosen=mean_interval(up).mean,
            heldout=heldout.get(int(step)),
        )
        points.append(point)
    return tuple(points)


def _mean_of_heldout(scores: Sequence[ProbeScore]) -> dict[int, float]:
    """Step → mean Δ log π of held-out chosen answers since the start, in nats."""
    paths = learning_paths(scores, "heldout")
    if paths is None or "chosen" not in paths.logp:
        return {}
    changes = paths.since_start("chosen")
    return {
        int(step): mean_interval(change).mean
        for step, change in zip(paths.steps, changes, strict=True)
    }


def reach(path: Sequence[MarginPoint]) -> float:
    """The largest margin of a path, in nats."""
    return max((point.margin for point in path), default=0.0)


def at_margin(
    path: Sequence[MarginPoint], margin: float, name: Literal["gap", "chosen", "heldout", "step"]
) -> float:
    """A path's figure where its margin first reaches `margin`, linear between probes; else nan."""
    for before, after in pairwise(path):
        if before.margin < margin <= after.margin:
            share = (margin - before.margin) / (after.margin - before.margin)
            start, end = getattr(before, name), getattr(after, name)
            return float(start + share * (end - start))
    return float("nan")


def matched_figures(path: Sequence[MarginPoint], other: Sequence[MarginPoint]) -> dict[str, float]:
    """How a training differs from another at the largest margin that both reach.

    `matched/gap`, `matched/chosen` and, where held-out pairs were probed, `matched/heldout`:
    differences in nats; `matched/steps`: how many times the other's steps it took there;
    `matched/margin`: that margin. Empty if it is below `LEAST_MARGIN`.
    """
    margin = min(reach(path), reach(other))
    if margin < LEAST_MARGIN:
        return {}
    heldout = {}
    if all(point.heldout is not None for point in (*path, *other)):
        difference = at_margin(path, margin, "heldout") - at_margin(other, margin, "heldout")
        heldout["matched/heldout"] = difference
    return heldout | {
        "matched/gap": at_margin(path, margin, "gap") - at_margin(other, margin, "gap"),
        "matched/chosen": at_margin(path, margin, "chosen") - at_margin(other, margin, "chosen"),
        "matched/steps": at_margin(path, margin, "step") / at_margin(other, margin, "step"),
        "matched/margin": margin,
    }


def table_of(compared: ComparedArms) -> ArmTable:
    """Every run's figures, seed by seed, with its `matched_figures` against the baseline.

    The baseline's are against itself, so that a difference from it is that at the same margin.
    """
    values: dict[str, list[dict[str, float]]] = {}
    counts: dict[str, int] = {}
    for arm, runs in compared.runs.items():
        values[arm] = []
        for run, base in zip(runs, compared.runs[compared.baseline], strict=True):
            values[arm].append(run.figures | matched_figures(run.path, base.path))
            for name, count in run.counts.items():
                counts[name] = min(count, counts.get(name, count))
    counts["matched/gap"] = counts["matched/chosen"] = counts.get("train/margin", 0)
    counts["matched/heldout"] = counts.get("heldout/chosen", 0)
    return ArmTable(values, counts=counts)
