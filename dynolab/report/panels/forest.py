"""Many arms side by side: a line for each arm, a panel for each figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from dynolab.comparisons.group_arms import ArmTable
from dynolab.report.panels.arm_style import DotPanel, range_of
from dynolab.report.style import (
    BEST,
    CHOSEN,
    INK,
    ZERO,
    axis_key,
    axis_name,
    base_layout,
    columns,
    panel_title,
    plotly_text,
    with_interval,
)

_ROW, _MARGIN = 34, 130  # pixels
_COLORS = (INK, CHOSEN, BEST)


def forest_figure(
    figures: ArmTable, arms: Sequence[str], panels: Sequence[DotPanel], baseline: str
) -> go.Figure:
    """Means over seeds with intervals, every seed as a small dot, and a line at the baseline."""
    figure = go.Figure()
    layout = base_layout(
        _ROW * len(arms) + _MARGIN,
        margin={"l": 110, "r": 24, "t": 76, "b": 54},
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 0.995,
            "yanchor": "top",
            "yref": "container",
        },
    )
    named = [plotly_text(arm, 32) for arm in arms]
    told, annotations, shapes = set[str](), [], []
    for index, (panel, domain) in enumerate(
        zip(panels, columns(len(panels), 0.025), strict=True), start=1
    ):
        axes = {"xaxis": axis_name("x", index), "yaxis": axis_name("y", index)}
        for place, (label, name) in enumerate(panel.figures.items()):
            where = {**axes, "offsetgroup": str(place), "legendgroup": label}
            _add_line(figure, figures, arms, label, name, _COLORS[place], where, label not in told)
            told.add(label)
        layout[axis_key("x", index)] = {
            "domain": domain,
            "anchor": axes["yaxis"],
            "title": {"text": panel.unit},
            "tickformat": panel.tickformat,
            "zeroline": panel.zero,
            "nticks": 5,
            "tickangle": 0,
            "range": range_of(figures, arms, panel),
        }
        layout[axis_key("y", index)] = {
            "anchor": axes["xaxis"],
            "type": "category",
            "categoryorder": "array",
            "categoryarray": named[::-1],
            "range": [-0.5, len(arms) - 0.5],
            "showticklabels": index == 1,
            "ticks": "outside" if index == 1 else "",
        }
        own = figures.mean(baseline, next(iter(panel.figures.values())))
        if np.isfinite(own.mean):
            shapes.append(
                {
                    "type": "line",
                    "xref": axes["xaxis"],
                    "yref": f"{axes['yaxis']} domain",
                    "x0": own.mean,
                    "x1": own.mean,
                    "y0": 0,
                    "y1": 1,
                    "layer": "below",
                    "line": {"color": ZERO, "dash": "dot", "width": 1.5},
                }
            )
        annotations.append(panel_title(panel.title, domain[0], 1.005, font={"size": 13}))
    layout["annotations"], layout["shapes"] = annotations, shapes
    figure.update_layout(**layout, scattermode="group", showlegend=len(told) > 1)
    return figure


def _add_line(
    figure: go.Figure,
    figures: ArmTable,
    arms: Sequence[str],
    label: str,
    name: str,
    color: str,
    where: Mapping[str, str],
    legend: bool,
) -> None:
    there = [(plotly_text(arm, 32), arm) for arm in arms if figures.mean(arm, name).n]
    if not there:
        return
    seeds = [
        (title, value)
        for title, arm in there
        for value in figures.values(arm, name)
        if np.isfinite(value)
    ]
    figure.add_scatter(
        y=[title for title, _ in seeds],
        x=[round(float(value), 6) for _, value in seeds],
        mode="markers",
        marker={"color": color, "size": 5, "opacity": 0.4},
        showlegend=False,
        orientation="h",
        hovertemplate="%{y}, one seed: %{x:.4g}<extra></extra>",
        **where,
    )
    means = [figures.mean(arm, name) for _, arm in there]
    half = [one.high - one.mean if np.isfinite(one.high) else None for one in means]
    figure.add_scatter(
        y=[title for title, _ in there],
        x=[round(one.mean, 6) for one in means],
        mode="markers",
        name=label,
        orientation="h",
        showlegend=legend,
        marker={"color": color, "size": 9, "symbol": "diamond"},
        error_x={"array": half, "color": color, "thickness": 1.5, "width": 4},
        customdata=[with_interval(one, sign=False) for one in means],
        hovertemplate=f"%{{y}}, {label}: %{{customdata}}<extra></extra>",
        **where,
    )
