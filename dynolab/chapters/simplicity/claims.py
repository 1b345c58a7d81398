"""Claims about simple mappings, and their verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.chapters.simplicity.rows import LearnedMapping, MappingKind
from dynolab.claims.verdict import Measurement, Verdict, above, below
from dynolab.statistics import Interval, mean_interval, rank_correlation


def per_seed(
    rows: Sequence[LearnedMapping], field: str, kind: MappingKind | None = None
) -> Float[ndarray, " seeds"]:
    """Mean of a field over the mappings of a kind, for every seed; NaN if there are none."""
    values = [getattr(row, field) for row in rows if kind in (None, row.kind)]
    if not values:
        return np.full(len(rows[0].area), np.nan)
    return np.array(values).mean(0)


def difference(rows: Sequence[LearnedMapping], field: str) -> Interval:
    """Compositional − holistic, paired by seed."""
    return mean_interval(per_seed(rows, field, "compositional") - per_seed(rows, field, "holistic"))


def correlation(rows: Sequence[LearnedMapping], field: str) -> Interval:
    """Spearman's ρ between a field and the area under the loss, averaged over seeds."""
    correlations = []
    for seed in range(len(rows[0].area) if rows else 0):
        values = [_seed_value(row, field, seed) for row in rows]
        kept = [(x, row.area[seed]) for x, row in zip(values, rows, strict=True) if x == x]
        correlations.append(float(rank_correlation(*np.array(kept).T)) if len(kept) > 2 else np.nan)
    return mean_interval(np.array(correlations))


def _seed_value(row: LearnedMapping, field: str, seed: int) -> float:
    value = getattr(row, field)
    return float(value[seed] if isinstance(value, tuple) else value)


def mapping_verdicts(rows: Sequence[LearnedMapping]) -> Iterator[Verdict]:
    """Judges the claims about one space's mappings; intervals are over seeds."""
    space = rows[0].space.label
    bijections = [row for row in rows if row.kind != "degenerate"]

    def verdict(name: str, claim: str, expected: str, figure: Measurement) -> Verdict:
        return Verdict.of(f"{space}/{name}", f"{space} objects", claim, expected, figure)

    yield verdict(
        "speed",
        "Compositional mappings, whose description is shorter, are learned faster",
        "area: compositional < holistic",
        below("Δ area", difference(rows, "area")),
    )
    yield verdict(
        "similarity",
        "Among bijections: the more alike the messages of alike objects, the faster",
        "ρ(similarity, area) < 0",
        below("ρ", correlation(bijections, "similarity"), unit=""),
    )
    cooperation = mean_interval(per_seed(rows, "start_cooperation", "compositional"))
    yield verdict(
        "cooperation",
        "Before training examples of compositional mappings that share an attribute lower each "
        "other’s loss",
        "cooperation > 0",
        above("cooperation", cooperation, unit=""),
    )
    contrary = mean_interval(per_seed(rows, "start_cooperation", "holistic"))
    yield verdict(
        "contradiction",
        "Those of holistic mappings raise it",
        "cooperation < 0",
        below("cooperation", contrary, unit=""),
    )
    for name, field, when in (
        ("start", "start_cooperation", "Before training"),
        ("along", "cooperation", "Over the whole training"),
    ):
        yield verdict(
            name,
            f"{when} examples of compositional mappings cooperate more than those of holistic ones",
            "Δ cooperation > 0",
            above("Δ cooperation", difference(rows, field), unit=""),
        )
    yield verdict(
        "explains",
        "Cooperation before training foretells the speed of all mappings",
        "ρ(cooperation, area) < 0",
        below("ρ", correlation(rows, "start_cooperation"), unit=""),
    )
