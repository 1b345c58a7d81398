"""The figures of the simplicity chapter: speed by kind, losses, similarity, and influence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from numpy import ndarray

from dynolab.chapters.simplicity.claims import correlation, difference, per_seed
from dynolab.chapters.simplicity.rows import KindPath, LearnedMapping, MappingKind, Paths
from dynolab.report.figure import LEGEND_OVER_TITLES, Figure, add_line, error_bars, subplots
from dynolab.report.style import CHOSEN, HISTORY, PAPER, REJECTED
from dynolab.report.text import join, number, with_interval
from dynolab.statistics import band, mean_interval

KINDS: Mapping[MappingKind, str] = {
    "compositional": CHOSEN,
    "holistic": REJECTED,
    "degenerate": HISTORY,
}

Rows = Sequence[LearnedMapping]
_COOPERATION = (
    "Cooperation: ⟨∇ℓₒ, ∇ℓᵤ⟩, how much a small step on a letter of object u lowers the loss of "
    "object o’s letter at the same position, mean over positions and over the pairs of objects "
    "that share an attribute. In a compositional mapping with two values per attribute as many of "
    "these letters agree as differ, so it is small."
)


def _panels(spaces: Sequence[Rows], across: str, up: str) -> go.Figure:
    """Panels side by side, one per space."""
    return subplots(
        [f"{rows[0].space.label}: {rows[0].space.objects} objects" for rows in spaces],
        400,
        space=0.07,
        margin={"l": 64, "r": 24, "t": 60, "b": 56},
        legend=LEGEND_OVER_TITLES,
        x={"title_text": across},
        y_title=up,
    )


def groups_of(rows: Rows) -> dict[str, list[LearnedMapping]]:
    """Groups mappings by coding length, or, without one, by how many messages they use."""
    groups: dict[str, list[LearnedMapping]] = {}
    for kind in ("compositional", "holistic"):
        own = [row for row in rows if row.kind == kind]
        if own and own[0].bits is not None:
            groups[f"{kind}, {own[0].bits:.3g} bits"] = own
    for count in sorted({row.distinct for row in rows if row.kind == "degenerate"}, reverse=True):
        own = [row for row in rows if row.kind == "degenerate" and row.distinct == count]
        groups[f"{count} message{'s' if count > 1 else ''}"] = own
    return groups


def speed_figure(spaces: Sequence[Rows]) -> Figure:
    """Area under the loss by coding length; maps without one are drawn apart."""
    plot = _panels(spaces, "", "area under the loss (nats)")
    messages = []
    for col, rows in enumerate(spaces, start=1):
        groups = groups_of(rows)
        for name, own in groups.items():
            _add_group(plot, name, own, col)
        plot.update_xaxes(range=[-0.6, len(groups) - 0.4], col=col)
        simple, other = (
            number(mean_interval(per_seed(rows, "area", kind)).mean, 2)
            for kind in ("compositional", "holistic")
        )
        messages.append(f"{simple} against {other} nats at {rows[0].space.label}")
    plot.update_xaxes(type="category", showgrid=False, tickangle=0, tickfont={"size": 11})
    plot.update_yaxes(rangemode="tozero")
    return Figure(
        "speed",
        "Learning speed against coding length",
        f"The area under the loss (smaller is faster) of compositional mappings against mappings "
        f"with longer descriptions: {join(messages)}.",
        "Small dots: mappings, means over seeds; diamonds: means over mappings with 95% intervals "
        "over seeds. Grey: maps that give several objects the same message; they have no coding "
        "length here and are grouped by how many messages they use.",
        plot,
    )


def _add_group(plot: go.Figure, name: str, own: Rows, col: int) -> None:
    """Every mapping's area as a small dot, and their mean with its interval."""
    color, mean = KINDS[own[0].kind], mean_interval(per_seed(own, "area"))
    label = name.replace(", ", "<br>").replace(" message", "<br>message")
    plot.add_scatter(
        x=[label] * len(own),
        y=[round(float(np.mean(row.area)), 5) for row in own],
        mode="markers",
        showlegend=False,
        marker={"color": color, "size": 6, "opacity": 0.35},
        hovertemplate="one mapping: %{y:.3f} nats<extra></extra>",
        row=1,
        col=col,
    )
    plot.add_scatter(
        x=[label],
        y=[round(mean.mean, 5)],
        mode="markers",
        showlegend=False,
        marker={"color": color, "size": 11, "symbol": "diamond"},
        error_y=error_bars([mean], color, width=5),
        hovertemplate=f"{name}: {with_interval(mean, sign=False)} nats<extra></extra>",
        row=1,
        col=col,
    )


def loss_figure(paths: Sequence[Sequence[KindPath]], spaces: Sequence[Rows]) -> Figure:
    """Mean loss of every kind by step with bands over seeds."""
    plot = _panels(spaces, "step", "loss (nats per object)")
    for col, own in enumerate(paths, start=1):
        for path in own:
            _add_path(plot, col, path.kind, path.losses, " nats")
    gains = [
        f"{with_interval(difference(rows, 'area'))} nats at {rows[0].space.label}"
        for rows in spaces
    ]
    return Figure(
        "losses",
        "How the loss falls",
        f"The mean loss over training of compositional mappings minus that of holistic ones is "
        f"{join(gains)}.",
        "Thick: means over mappings and seeds; bands: 95% intervals over seeds, that is over "
        "initial weights. Mappings are compared by the area under their curves.",
        plot,
    )


def cooperation_figure(paths: Sequence[Sequence[KindPath]], spaces: Sequence[Rows]) -> Figure:
    """Cooperation of every kind by step, with bands over seeds."""
    plot = _panels(spaces, "step", "⟨∇ℓₒ, ∇ℓᵤ⟩")
    for col, own in enumerate(paths, start=1):
        for path in own:
            _add_path(plot, col, path.kind, path.cooperation, "")
    messages = []
    for rows in spaces:
        simple, other = (
            with_interval(mean_interval(per_seed(rows, "start_cooperation", kind)))
            for kind in ("compositional", "holistic")
        )
        messages.append(f"{simple} against {other} at {rows[0].space.label}")
    return Figure(
        "cooperation",
        "Do the examples of good mappings cooperate?",
        "Above zero examples that share an attribute help each other, below they hinder. Before "
        f"training, compositional against holistic mappings: {join(messages)}.",
        f"Thick: means over mappings and seeds; bands: 95% intervals over seeds. {_COOPERATION}",
        plot,
    )


def _add_path(plot: go.Figure, col: int, kind: MappingKind, paths: Paths, unit: str) -> None:
    values = np.array(paths).T
    add_line(
        plot,
        np.arange(len(values)),
        band(values),
        {"color": KINDS[kind], "width": 2.5},
        where={"legendgroup": kind, "row": 1, "col": col},
        opacity=0.15,
        name=kind,
        showlegend=col == 1,
        hovertemplate=f"{kind}, step %{{x}}: %{{y:.3f}}{unit}<extra></extra>",
    )


def similarity_figure(spaces: Sequence[Rows]) -> Figure:
    """Area under the loss against topographic similarity, one panel a space."""
    plot = _panels(spaces, "topographic similarity", "area (nats)")
    correlations = []
    for col, rows in enumerate(spaces, start=1):
        _add_points(plot, col, rows, np.array([row.similarity for row in rows]), "similarity")
        rho = correlation([row for row in rows if row.kind != "degenerate"], "similarity")
        correlations.append(f"{with_interval(rho, sign=False)} at {rows[0].space.label}")
    return Figure(
        "similarity",
        "Are similar messages for similar objects learned faster?",
        "Among bijections, similarity and area under the loss have rank correlation "
        f"{join(correlations)}.",
        "A point: one mapping, a mean over seeds; lower is faster. Topographic similarity is "
        "Spearman’s ρ of the distances of two objects and of their messages; constant maps have "
        "none and are left out. A compositional mapping has 1. Degenerate maps give several "
        "objects the same message: the fewer messages, the less there is to learn.",
        plot,
    )


def influence_figure(spaces: Sequence[Rows]) -> Figure:
    """Area under the loss against cooperation before training."""
    plot = _panels(spaces, "cooperation before training", "area (nats)")
    correlations = []
    for col, rows in enumerate(spaces, start=1):
        start = np.array([np.mean(row.start_cooperation) for row in rows])
        _add_points(plot, col, rows, start, "cooperation")
        rho = correlation(rows, "start_cooperation")
        correlations.append(f"{with_interval(rho, sign=False)} at {rows[0].space.label}")
    return Figure(
        "influence",
        "Does cooperation predict which mappings are learned fast?",
        f"Cooperation before any training and area under the loss have rank correlation "
        f"{join(correlations)}, all mappings together.",
        f"A point: one mapping, a mean over seeds. {_COOPERATION}",
        plot,
    )


def _add_points(
    plot: go.Figure, col: int, rows: Rows, x: Float[ndarray, " mappings"], quantity: str
) -> None:
    """Adds one point per mapping: its area against `x`, coloured by kind."""
    for kind, color in KINDS.items():
        own = [
            (row, value)
            for row, value in zip(rows, x, strict=True)
            if row.kind == kind and np.isfinite(value)
        ]
        if own:
            plot.add_scatter(
                x=[round(float(value), 5) for _, value in own],
                y=[round(float(np.mean(row.area)), 5) for row, _ in own],
                mode="markers",
                name=kind,
                legendgroup=kind,
                showlegend=col == 1,
                marker={
                    "color": color,
                    "size": 9 if kind == "compositional" else 7,
                    "opacity": 0.75,
                    "line": {"color": PAPER, "width": 0.7},
                },
                text=[f"{kind} {'·'.join(map(str, row.messages))}" for row, _ in own],
                hovertemplate=f"%{{text}}<br>{quantity} %{{x:.3g}}, area %{{y:.3f}} nats"
                "<extra></extra>",
                row=1,
                col=col,
            )
