"""The page on simplicity: which mappings a network learns fast, why, and which claims hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from dynolab.claims.verdict import Claimed, Verdict, above, below, judged
from dynolab.report.figure import LEGEND_OVER_TITLES, Figure, in_panel, subplots
from dynolab.report.page import section, table
from dynolab.report.plots import LinePanel, line_plot
from dynolab.report.style import CHOSEN, HISTORY, REJECTED, number, with_interval
from dynolab.statistics import Interval, mean_interval, rank_correlation
from experiments.chapters.page import BANDS, Chapter, Facts, path_line, read_frame, select

_COLORS = {"compositional": CHOSEN, "holistic": REJECTED, "degenerate": HISTORY}
_COOPERATION = (
    "Cooperation: ⟨∇ℓₒ, ∇ℓᵤ⟩, how much a small step on a letter of object u lowers the loss of "
    "object o's letter at the same position, mean over positions and over the pairs of objects "
    "that share an attribute."
)


def simplicity(inputs: Mapping[str, Path], facts: Facts) -> Chapter:
    """Make the chapter of one result of stage `mappings` for every space, in their order."""
    spaces = [read_frame([folder], "mappings.jsonl") for folder in inputs.values()]
    paths = [read_frame([folder], "paths.jsonl") for folder in inputs.values()]
    lines = [line for mappings in spaces for line in _table_rows(mappings)]
    return Chapter(
        title="Simplicity: which mappings are learned fast",
        lead="An object has m attributes of v values (written m×v), and a message has as many "
        "letters. A mapping from objects to messages is compositional if every letter encodes one "
        "attribute: it then has a short description. A small network learns all mappings of a "
        "space at once, from several initial weights.",
        verdicts=[verdict for mappings in spaces for verdict in mapping_verdicts(mappings)],
        content=[
            section(
                "kinds",
                "Kinds of mappings",
                "Area: mean loss over the steps of training; smaller is faster.",
                table(
                    (
                        "space",
                        "mappings",
                        "number",
                        "area, nats",
                        "cooperation before training",
                        "over training",
                    ),
                    lines,
                    "ssnnnn",
                ),
                note="Means over mappings, then over seeds [95% t-interval]. Degenerate maps give "
                "several objects the same message and have no coding length.",
            ),
            _paths("losses", "How the loss falls", "loss (nats per object)", paths, ""),
            _paths(
                "cooperation",
                "Do the examples of good mappings cooperate?",
                "⟨∇ℓₒ, ∇ℓᵤ⟩",
                paths,
                _COOPERATION,
            ),
            _points(
                "similarity",
                "Are similar messages for similar objects learned faster?",
                "topographic similarity",
                spaces,
                "similarity",
                "Topographic similarity: Spearman's ρ of the distances of two objects and of their "
                "messages; constant maps have none and are left out. ρ: of bijections alone.",
            ),
            _points(
                "influence",
                "Does cooperation predict which mappings are learned fast?",
                "cooperation before training",
                spaces,
                "start_cooperation",
                _COOPERATION,
            ),
        ],
        source="Claims follow Ren & Sutherland (arXiv 2409.09626). Intervals are t-intervals over "
        "seeds, which give the initial weights, the same for all mappings. Coding lengths are log₂ "
        "m! + m log₂ v! bits for compositional mappings and log₂ (v^m)! for other bijections.",
    )


def _table_rows(mappings: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    """A line for each kind and coding length or, without one, number of different messages."""
    names = [
        f"{row.kind}, "
        + (f"{row.distinct} messages" if np.isnan(row.bits) else f"{row.bits:.3g} bits")
        for row in mappings.astype({"bits": float}).itertuples()
    ]
    for name, of_name in mappings.groupby(np.array(names)):
        yield (
            label_of(of_name),
            name,
            str(len(of_name)),
            with_interval(mean_interval(per_seed(of_name, "area")), sign=False),
            with_interval(mean_interval(per_seed(of_name, "start_cooperation"))),
            with_interval(mean_interval(per_seed(of_name, "cooperation"))),
        )


def _paths(name: str, title: str, unit: str, paths: Sequence[pd.DataFrame], note: str) -> Figure:
    """A column of every kind's paths by step, a panel for each space."""
    panels = []
    for of_space in paths:
        lines = [
            path_line(row.kind, range(len(values[0])), np.array(values))
            for row in of_space.itertuples()
            for values in (getattr(row, name),)
        ]
        panels.append(LinePanel(label_of(of_space), "step", unit, lines))
    return Figure(
        name, title, "Means over the mappings of a kind.", f"{note} {BANDS}", line_plot(panels)
    )


def _points(
    name: str,
    title: str,
    across: str,
    spaces: Sequence[pd.DataFrame],
    column: str,
    note: str,
) -> Figure:
    """Area under the loss against a column of every mapping, a panel for each space."""
    # The claim on similarity is about bijections alone.
    kinds = ["compositional", "holistic"] if name == "similarity" else list(_COLORS)
    rho = [number(correlation(rows[rows.kind.isin(kinds)], column).mean, 2) for rows in spaces]
    plot = subplots(
        [f"{label_of(rows)}: ρ = {of_kind}" for rows, of_kind in zip(spaces, rho, strict=True)],
        400,
        space=0.07,
        margin={"l": 64, "r": 24, "t": 60, "b": 56},
        legend=LEGEND_OVER_TITLES,
        x={"title_text": across},
        y_title="area (nats)",
    )
    for col, rows in enumerate(spaces, start=1):
        for kind, color in _COLORS.items():
            of_kind = select(rows, kind=kind)
            x = np.array([np.mean(value) for value in of_kind[column]])
            of_kind, x = of_kind[np.isfinite(x)], x[np.isfinite(x)]
            plot.add_scatter(
                x=x.round(5),
                y=[round(float(np.mean(area)), 5) for area in of_kind.area],
                mode="markers",
                **in_panel(col, kind),
                marker={"color": color, "size": 7, "opacity": 0.75},
                text=["·".join(map(str, messages)) for messages in of_kind.messages],
            )
    return Figure(name, title, "A point: one mapping, a mean over seeds.", note, plot)


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
    if any(of_kind.empty for of_kind in kinds):
        return mean_interval([])
    compositional, holistic = (per_seed(of_kind, column) for of_kind in kinds)
    return mean_interval(compositional - holistic)


def correlation(rows: pd.DataFrame, column: str) -> Interval:
    """Spearman's ρ between a column and the area under the loss, averaged over seeds."""
    measured = rows[[bool(np.isfinite(value).all()) for value in rows[column]]]
    if len(measured) < 3:
        return mean_interval([])
    area = np.array(measured.area.to_list()).T
    values = np.array(measured[column].to_list()).T
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
        mean_interval(per_seed(of_kind, "start_cooperation") if len(of_kind) else np.array([]))
        for kind in ("compositional", "holistic")
        for of_kind in (select(rows, kind=kind),)
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
