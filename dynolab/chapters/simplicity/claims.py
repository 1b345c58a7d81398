"""Claims about simple mappings, and their verdicts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from dynolab.chapters.page import select
from dynolab.claims.verdict import Claimed, Verdict, above, below, judged
from dynolab.statistics import Interval, mean_interval, rank_correlation


def label_of(rows: pd.DataFrame) -> str:
    """The space of a table's mappings as people write it: 2×2."""
    space = rows.space.iloc[0]
    return f"{space['attributes']}×{space['values']}"


def per_seed(rows: pd.DataFrame, column: str) -> Float[ndarray, " seeds"]:
    """Mean of a column over the mappings, for every seed."""
    means: ndarray = np.mean(rows[column].to_list(), axis=0)
    return means


def difference(rows: pd.DataFrame, column: str) -> Interval:
    """Compositional − holistic, paired by seed; empty without one of the kinds."""
    kinds = [select(rows, kind=kind) for kind in ("compositional", "holistic")]
    if any(own.empty for own in kinds):
        return mean_interval(np.array([]))
    compositional, holistic = (per_seed(own, column) for own in kinds)
    return mean_interval(compositional - holistic)


def correlation(rows: pd.DataFrame, column: str) -> Interval:
    """Spearman's ρ between a column and the area under the loss, averaged over seeds."""
    known = rows[[bool(np.isfinite(value).all()) for value in rows[column]]]
    if len(known) < 3:
        return mean_interval(np.array([]))
    area = np.array(known.area.to_list()).T
    values = np.array(known[column].to_list()).T
    return mean_interval(np.asarray(rank_correlation(np.broadcast_to(values, area.shape), area)))


def mapping_verdicts(rows: pd.DataFrame) -> list[Verdict]:
    """Judges the claims about one space's mappings; intervals are over seeds."""
    space = label_of(rows)
    return judged(space, f"{space} objects", _claims(rows))


def _claims(rows: pd.DataFrame) -> Iterator[Claimed]:
    yield (
        "speed",
        "Compositional mappings, whose description is shorter, are learned faster",
        "area: compositional < holistic",
        below("Δ area", difference(rows, "area")),
    )
    bijections = rows[rows.kind != "degenerate"]
    yield (
        "similarity",
        "Among bijections: the more alike the messages of alike objects, the faster",
        "ρ(similarity, area) < 0",
        below("ρ", correlation(bijections, "similarity"), unit=""),
    )
    shared, contrary = (
        mean_interval(per_seed(own, "start_cooperation") if len(own) else np.array([]))
        for kind in ("compositional", "holistic")
        for own in (select(rows, kind=kind),)
    )
    yield (
        "cooperation",
        "Before training examples of compositional mappings that share an attribute lower each "
        "other’s loss",
        "cooperation > 0",
        above("cooperation", shared, unit=""),
    )
    yield (
        "contradiction",
        "Those of holistic mappings raise it",
        "cooperation < 0",
        below("cooperation", contrary, unit=""),
    )
    for name, column, when in (
        ("start", "start_cooperation", "Before training"),
        ("along", "cooperation", "Over the whole training"),
    ):
        yield (
            name,
            f"{when} examples of compositional mappings cooperate more than those of holistic ones",
            "Δ cooperation > 0",
            above("Δ cooperation", difference(rows, column), unit=""),
        )
    yield (
        "explains",
        "Cooperation before training predicts the speed of all mappings",
        "ρ(cooperation, area) < 0",
        below("ρ", correlation(rows, "start_cooperation"), unit=""),
    )
