"""The figures of the simplicity chapter: speed by kind, losses, likeness, and influence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from numpy import ndarray

from dynolab.claims.simplicity import correlation, difference, per_seed
from dynolab.report.style import (
    CHOSEN,
    HISTORY,
    PAPER,
    REJECTED,
    Plate,
    axis_key,
    axis_name,
    base_layout,
    columns,
    join,
    number,
    panel_title,
    with_interval,
)
from dynolab.results.simplicity import KindPath, LearnedMapping, MappingKind, Paths
from dynolab.statistics import band, mean_interval

KINDS: Mapping[MappingKind, str] = {
    "compositional": CHOSEN,
    "holistic": REJECTED,
    "degenerate": HISTORY,
}

Rows = Sequence[LearnedMapping]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _layout(titles: Sequence[str], across: str, up: str, height: int = 400) -> dict[str, Any]:
    """Panels side by side, one a space."""
    layout = base_layout(height, margin={"l": 64, "r": 24, "t": 60, "b": 56})
    annotations = []
    for index, (title, domain) in enumerate(
        zip(titles, columns(len(titles), 0.07), strict=True), start=1
    ):
        layout[axis_key("x", index)] = {
            "domain": domain,
            "anchor": axis_name("y", index),
            "title": {"text": across},
        }
        layout[axis_key("y", index)] = {
            "anchor": axis_name("x", index),
            "title": {"text": up if index == 1 else ""},
        }
        annotations.append(panel_title(title, domain[0], 1.02))
    layout["annotations"] = annotations
    layout["legend"] = {
        "orientation": "h",
        "x": 0.82,
        "xanchor": "right",
        "y": 1.1,
        "yanchor": "bottom",
    }
    return layout


def _titles(spaces: Sequence[Rows]) -> list[str]:
    return [f"{rows[0].space.label}: {rows[0].space.objects} objects" for rows in spaces]


def _points(
    figure: go.Figure, index: int, rows: Rows, x: Float[ndarray, " mappings"], what: str
) -> None:
    """One point a mapping: its area against something, coloured by kind."""
    area = np.array([_mean(row.area) for row in rows])
    for kind, color in KINDS.items():
        own = np.array([row.kind == kind for row in rows]) & np.isfinite(x)
        if not own.any():
            continue
        said = [f"{row.kind} {'·'.join(map(str, row.messages))}" for row in rows]
        figure.add_scatter(
            x=x[own].round(5),
            y=area[own].round(5),
            mode="markers",
            name=kind,
            legendgroup=kind,
            showlegend=index == 1,
            marker={
                "color": color,
                "size": 9 if kind == "compositional" else 7,
                "opacity": 0.75,
                "line": {"color": PAPER, "width": 0.7},
            },
            text=[words for words, one in zip(said, own, strict=True) if one],
            hovertemplate=f"%{{text}}<br>{what} %{{x:.3g}}, area %{{y:.3f}} nats<extra></extra>",
            xaxis=axis_name("x", index),
            yaxis=axis_name("y", index),
        )


def similarity_plate(spaces: Sequence[Rows]) -> Plate:
    """Area under the loss against topographic similarity, one panel a space."""
    figure = go.Figure()
    for index, rows in enumerate(spaces, start=1):
        _points(figure, index, rows, np.array([row.similarity for row in rows]), "similarity")
    figure.update_layout(**_layout(_titles(spaces), "topographic similarity", "area (nats)"))
    said = []
    for rows in spaces:
        rho = correlation([row for row in rows if row.kind != "degenerate"], "similarity")
        said.append(f"{with_interval(rho, sign=False)} at {rows[0].space.label}")
    return Plate(
        "similarity",
        "Are alike messages for alike objects learned faster?",
        f"Among bijections similarity and area under the loss have rank correlation {join(said)}.",
        "A point: one mapping, a mean over seeds; lower is faster. Topographic similarity is "
        "Spearman’s ρ of the distances of two objects and of their messages; constant maps have "
        "none and are left out. A compositional mapping has 1. Degenerate maps give objects one "
        "message: the fewer messages, the less there is to learn.",
        figure,
    )


def influence_plate(spaces: Sequence[Rows]) -> Plate:
    """Area under the loss against cooperation before training."""
    figure = go.Figure()
    for index, rows in enumerate(spaces, start=1):
        start = np.array([_mean(row.start_cooperation) for row in rows])
        _points(figure, index, rows, start, "cooperation")
    figure.update_layout(**_layout(_titles(spaces), "cooperation before training", "area (nats)"))
    said = [
        f"{with_interval(correlation(rows, 'start_cooperation'), sign=False)} at "
        f"{rows[0].space.label}"
        for rows in spaces
    ]
    return Plate(
        "influence",
        "Does cooperation foretell which mappings are learned fast?",
        f"Cooperation before any training and area under the loss have rank correlation "
        f"{join(said)}, all mappings together.",
        f"A point: one mapping, a mean over seeds. {_COOPERATION}",
        figure,
    )


_COOPERATION = (
    "Cooperation: ⟨∇ℓₒ, ∇ℓᵤ⟩, how much a small step on a letter of object u lowers the loss of "
    "object o’s letter at that place, mean over places and over the pairs of objects that share an "
    "attribute. Of a compositional mapping with two values per attribute as many of these letters "
    "agree as differ, so that little is left of it."
)


def cooperation_plate(paths: Sequence[Sequence[KindPath]], spaces: Sequence[Rows]) -> Plate:
    """Cooperation of every kind by step, with bands over seeds."""
    figure = go.Figure()
    for index, own in enumerate(paths, start=1):
        for path in own:
            _add_path(figure, index, path.kind, path.cooperation, "")
    figure.update_layout(**_layout(_titles(spaces), "step", "⟨∇ℓₒ, ∇ℓᵤ⟩"))
    said = []
    for rows in spaces:
        means = [
            with_interval(mean_interval(per_seed(rows, "start_cooperation", kind)))
            for kind in ("compositional", "holistic")
        ]
        said.append(f"{means[0]} against {means[1]} at {rows[0].space.label}")
    return Plate(
        "cooperation",
        "Do the examples of good mappings cooperate?",
        "Above zero examples that share an attribute help each other, below they hinder. Before "
        f"training, compositional against holistic mappings: {join(said)}.",
        f"Thick: means over mappings and seeds; bands: 95% intervals over seeds. {_COOPERATION}",
        figure,
    )


def loss_plate(spaces: Sequence[Sequence[KindPath]], areas: Sequence[Rows]) -> Plate:
    """Mean loss of every kind by step with bands over seeds."""
    figure = go.Figure()
    for index, paths in enumerate(spaces, start=1):
        for path in paths:
            _add_path(figure, index, path.kind, path.losses, " nats")
    layout = _layout(_titles(areas), "step", "loss (nats per object)")
    figure.update_layout(**layout)
    said = []
    for rows in areas:
        gained = difference(rows, "area")
        said.append(f"{with_interval(gained)} nats at {rows[0].space.label}")
    return Plate(
        "losses",
        "How the loss falls",
        f"The mean loss over training of compositional mappings less that of holistic ones is "
        f"{join(said)}.",
        "Thick: means over mappings and seeds; bands: 95% intervals over seeds, that is over "
        "initial weights. The area under a curve is the speed by which mappings are compared.",
        figure,
    )


def _add_path(figure: go.Figure, index: int, kind: MappingKind, paths: Paths, unit: str) -> None:
    color, values = KINDS[kind], np.array(paths).T
    steps = np.arange(len(values))
    mean, low, high = band(values)
    axes = {
        "xaxis": axis_name("x", index),
        "yaxis": axis_name("y", index),
        "legendgroup": kind,
    }
    if np.isfinite(low).all():
        figure.add_scatter(
            x=np.concatenate([steps, steps[::-1]]),
            y=np.concatenate([high, low[::-1]]).round(5),
            fill="toself",
            fillcolor=color,
            opacity=0.15,
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            showlegend=False,
            **axes,
        )
    figure.add_scatter(
        x=steps,
        y=mean.round(5),
        mode="lines",
        name=kind,
        showlegend=index == 1,
        line={"color": color, "width": 2.5},
        hovertemplate=f"{kind}, step %{{x}}: %{{y:.3f}}{unit}<extra></extra>",
        **axes,
    )


def groups_of(rows: Rows) -> dict[str, list[LearnedMapping]]:
    """Mappings by coding length where they have one; the others by how many messages they use."""
    found: dict[str, list[LearnedMapping]] = {}
    for kind in ("compositional", "holistic"):
        own = [row for row in rows if row.kind == kind]
        if own and own[0].bits is not None:
            found[f"{kind}, {own[0].bits:.3g} bits"] = own
    for count in sorted({row.distinct for row in rows if row.kind == "degenerate"}, reverse=True):
        own = [row for row in rows if row.kind == "degenerate" and row.distinct == count]
        found[f"{count} message{'s' if count > 1 else ''}"] = own
    return found


def speed_plate(spaces: Sequence[Rows]) -> Plate:
    """Area under the loss by coding length; maps without one stand apart."""
    figure = go.Figure()
    for index, rows in enumerate(spaces, start=1):
        axes = {"xaxis": axis_name("x", index), "yaxis": axis_name("y", index)}
        for name, own in groups_of(rows).items():
            color, mean = KINDS[own[0].kind], mean_interval(per_seed(own, "area"))
            label = name.replace(", ", "<br>").replace(" message", "<br>message")
            figure.add_scatter(
                x=[label] * len(own),
                y=[round(_mean(row.area), 5) for row in own],
                mode="markers",
                showlegend=False,
                marker={"color": color, "size": 6, "opacity": 0.35},
                hovertemplate="one mapping: %{y:.3f} nats<extra></extra>",
                **axes,
            )
            half = mean.high - mean.mean
            figure.add_scatter(
                x=[label],
                y=[round(mean.mean, 5)],
                mode="markers",
                showlegend=False,
                marker={"color": color, "size": 11, "symbol": "diamond"},
                error_y={
                    "array": [half if np.isfinite(half) else None],
                    "color": color,
                    "thickness": 1.5,
                    "width": 5,
                },
                hovertemplate=f"{name}: {with_interval(mean, sign=False)} nats<extra></extra>",
                **axes,
            )
    layout = _layout(_titles(spaces), "", "area under the loss (nats)")
    for index, rows in enumerate(spaces, start=1):
        layout[axis_key("x", index)] |= {
            "type": "category",
            "showgrid": False,
            "tickangle": 0,
            "tickfont": {"size": 11},
            "range": [-0.6, len(groups_of(rows)) - 0.4],
        }
        layout[axis_key("y", index)] |= {"rangemode": "tozero"}
    figure.update_layout(**layout)
    said = []
    for rows in spaces:
        simple, other = (
            mean_interval(per_seed(rows, "area", kind)).mean
            for kind in ("compositional", "holistic")
        )
        said.append(f"{number(simple, 2)} against {number(other, 2)} nats at {rows[0].space.label}")
    return Plate(
        "speed",
        "Learning speed against coding length",
        f"The area under the loss, where less is faster, of compositional mappings and of longer "
        f"described ones: {join(said)}.",
        "Small dots: mappings, means over seeds; diamonds: means over mappings with 95% intervals "
        "over seeds. Grey: maps that give several objects one message have no coding length here "
        "and stand apart, by how many messages they use.",
        figure,
    )


def speed_rows(rows: Rows) -> list[tuple[str, ...]]:
    """A table's lines: one for each group of mappings."""
    lines = []
    for name, own in groups_of(rows).items():
        similarity = [row.similarity for row in own if np.isfinite(row.similarity)]
        pushes = [
            mean_interval(per_seed(own, field)) for field in ("start_cooperation", "cooperation")
        ]
        lines.append(
            (
                rows[0].space.label,
                name if own[0].kind != "degenerate" else f"degenerate, {name}",
                str(len(own)),
                number(_mean(similarity), 2) if similarity else "–",
                with_interval(mean_interval(per_seed(own, "area")), sign=False),
                *(with_interval(one) for one in pushes),
            )
        )
    return lines
