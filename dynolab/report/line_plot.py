"""Draws line plots: means with intervals over steps or k, panels side by side, one legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import plotly.graph_objects as go

from dynolab.report.figure import LEGEND_BELOW, add_line, subplots
from dynolab.report.style import arm_style
from dynolab.report.text import plotly_text, with_interval
from dynolab.statistics import Interval


@dataclass(frozen=True)
class Line:
    """Means with intervals, one for each x."""

    name: str
    x: Sequence[float]
    intervals: Sequence[Interval]
    dotted: bool = False


@dataclass(frozen=True)
class LinePanel:
    """Lines on axes of their own.

    `ticks`: labels of positions 0, 1, …, if x holds positions and not values.
    """

    title: str
    x_title: str
    unit: str
    lines: Sequence[Line]
    tickformat: str = ""
    zero: bool = False
    ticks: Sequence[str] = field(default=())


def line_plot(
    panels: Sequence[LinePanel], *, named: Mapping[str, str] | None = None, height: int = 400
) -> go.Figure:
    """Plots the panels; lines of the same name have the same colour in all of them.

    **Arguments:** `named`: legend labels by line name; colours follow its order first, then
    that of the panels.
    """
    names = named or {}
    order = list(dict.fromkeys([*names, *(line.name for panel in panels for line in panel.lines)]))
    in_legend = set[str]()
    plot = subplots(
        [panel.title for panel in panels],
        height,
        space=0.09,
        margin={"l": 64, "r": 24, "t": 56, "b": 92},
        legend=LEGEND_BELOW | {"x": 0, "xanchor": "left"},
    )
    for col, panel in enumerate(panels, start=1):
        for line in panel.lines:
            label = plotly_text(names.get(line.name, line.name), 40)
            place, legend = order.index(line.name), line.name not in in_legend
            _add(plot, line, label, place, panel, col, legend)
            in_legend.add(line.name)
        plot.update_xaxes(title_text=panel.x_title, col=col)
        if panel.ticks:
            places = list(range(len(panel.ticks)))
            plot.update_xaxes(tickvals=places, ticktext=list(panel.ticks), col=col)
        plot.update_yaxes(
            title_text=panel.unit,
            tickformat=panel.tickformat,
            zeroline=panel.zero,
            rangemode="tozero" if panel.zero else None,
            col=col,
        )
    plot.update_layout(showlegend=len(in_legend) > 1)
    return plot


def _add(
    plot: go.Figure, line: Line, label: str, place: int, panel: LinePanel, col: int, legend: bool
) -> None:
    color, dash = arm_style(place)
    x = np.array(line.x, dtype=float)
    mean, low, high = np.array([[i.mean, i.low, i.high] for i in line.intervals]).T
    at = [panel.ticks[int(value)] if panel.ticks else f"{value:g}" for value in x]
    add_line(
        plot,
        x,
        (mean, low, high),
        {
            "color": color,
            "dash": "dot" if line.dotted else dash,
            "width": 1.5 if line.dotted else 2.5,
        },
        where={"legendgroup": line.name, "row": 1, "col": col},
        name=label,
        mode="lines+markers" if len(x) <= 12 else "lines",
        showlegend=legend and not line.dotted,
        customdata=[
            f"{tick}: {with_interval(interval, sign=False)}"
            for tick, interval in zip(at, line.intervals, strict=True)
        ],
        hovertemplate=f"{label}, {plotly_text(panel.x_title, 40)} %{{customdata}}<extra></extra>",
    )
