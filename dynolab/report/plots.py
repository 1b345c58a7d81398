"""Draws means with intervals: lines over steps or k, and forest plots of runs, a row each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dynolab.comparisons.arm_table import ArmTable
from dynolab.report.figure import LEGEND_BELOW, outline, subplots
from dynolab.report.style import BEST, CHOSEN, INK, ZERO, arm_style, plotly_text, with_interval
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
    """Draws a line in its band."""
    color, dash = arm_style(place)
    x = np.array(line.x, dtype=float)
    mean, low, high = np.array([[i.mean, i.low, i.high] for i in line.intervals]).T
    at = [panel.ticks[int(value)] if panel.ticks else f"{value:g}" for value in x]
    where: dict[str, Any] = {"legendgroup": line.name, "row": 1, "col": col}
    around_x, around_y = outline(x, low, high)
    if around_x.size:
        plot.add_scatter(
            x=around_x,
            y=around_y,
            fill="toself",
            fillcolor=color,
            opacity=0.1,
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            showlegend=False,
            **where,
        )
    plot.add_scatter(
        x=x,
        y=mean.round(6),
        line={
            "color": color,
            "dash": "dot" if line.dotted else dash,
            "width": 1.5 if line.dotted else 2.5,
        },
        name=label,
        mode="lines+markers" if len(x) <= 12 else "lines",
        showlegend=legend and not line.dotted,
        customdata=[
            f"{tick}: {with_interval(interval, sign=False)}"
            for tick, interval in zip(at, line.intervals, strict=True)
        ],
        hovertemplate=f"{label}, {plotly_text(panel.x_title, 40)} %{{customdata}}<extra></extra>",
        **where,
    )


_COLORS = (INK, CHOSEN, BEST)
_ROW, _MARGIN = 34, 130  # pixels of height: of each arm's row, and of the rest
_WIDE = 6  # panels side by side whose titles and ticks have room in a page's width


@dataclass(frozen=True)
class DotPanel:
    """One panel; `figures`: names of the arm table's figures by legend label."""

    title: str
    unit: str
    figures: Mapping[str, str]
    tickformat: str = ""
    zero: bool = False


def forest_plot(
    figures: ArmTable, arms: Sequence[str], panels: Sequence[DotPanel], baseline: str
) -> go.Figure:
    """Plots runs from top to bottom, with a line across them at the baseline's mean."""
    titles = {arm: plotly_text(arm, 32) for arm in arms}
    plot = subplots(
        [panel.title for panel in panels],
        _ROW * len(arms) + _MARGIN,
        space=0.025,
        shared_y=True,
        scattermode="group",
        margin={"l": 110, "r": 24, "t": 76, "b": 54},
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 0.995,
            "yanchor": "top",
            "yref": "container",
        },
        y={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": list(titles.values())[::-1],
            "range": [-0.5, len(arms) - 0.5],
        },
    )
    wide = len(panels) <= _WIDE
    plot.update_annotations(y=1.005, font={"size": 13 if wide else 11})
    line = {"color": ZERO, "dash": "dot", "width": 1.5}
    labels = set[str]()
    for col, panel in enumerate(panels, start=1):
        for place, (label, name) in enumerate(panel.figures.items()):
            where = {
                "offsetgroup": str(place),
                "legendgroup": label,
                "row": 1,
                "col": col,
                "orientation": "h",  # values are on the x axis
            }
            measured = {arm: title for arm, title in titles.items() if figures.mean(arm, name).n}
            if measured:
                color, legend = _COLORS[place % len(_COLORS)], label not in labels
                _add_dots(plot, figures, measured, (label, name), color, legend, where)
            labels.add(label)
        plot.update_xaxes(
            title_text=panel.unit,
            tickformat=panel.tickformat,
            zeroline=panel.zero,
            range=_range(figures, arms, panel),
            nticks=5 if wide else 3,
            tickangle=0,
            col=col,
        )
        base = figures.mean(baseline, next(iter(panel.figures.values())))
        if np.isfinite(base.mean):
            plot.add_vline(x=base.mean, layer="below", line=line, row=1, col=col)
        if col > 1:
            plot.update_yaxes(ticks="", col=col)
    plot.update_layout(showlegend=len(labels) > 1)
    return plot


def _range(figures: ArmTable, arms: Sequence[str], panel: DotPanel) -> list[float] | None:
    """The axis range that shows every interval and dot; plotly's own range does not."""
    shown = [0.0] if panel.zero else []
    for name in panel.figures.values():
        for arm in arms:
            mean = figures.mean(arm, name)
            shown += [mean.low, mean.high, *map(float, figures.values(arm, name))]
    finite = [value for value in shown if np.isfinite(value)]
    if not finite or min(finite) == max(finite):
        return None
    if "%" in panel.tickformat:  # no share is below zero or above one, whatever its interval
        finite = [min(max(value, 0.0), 1.0) for value in finite]
    room = 0.06 * (max(finite) - min(finite))
    return [min(finite) - room, max(finite) + room]


def _add_dots(
    plot: go.Figure,
    figures: ArmTable,
    arms: Mapping[str, str],
    named: tuple[str, str],
    color: str,
    legend: bool,
    where: Mapping[str, Any],
) -> None:
    label, name = named
    seeds = [
        (title, round(float(seed), 6))
        for arm, title in arms.items()
        for seed in figures.values(arm, name)
        if np.isfinite(seed)
    ]
    plot.add_scatter(
        x=[seed for _, seed in seeds],
        y=[title for title, _ in seeds],
        mode="markers",
        marker={"color": color, "size": 5, "opacity": 0.45},
        showlegend=False,
        hovertemplate="%{y}, one seed: %{x:.4g}<extra></extra>",
        **where,
    )
    means = [figures.mean(arm, name) for arm in arms]
    half = [i.high - i.mean if np.isfinite(i.high) else None for i in means]
    plot.add_scatter(
        x=[round(mean.mean, 6) for mean in means],
        y=list(arms.values()),
        error_x={"array": half, "color": color, "thickness": 1.5, "width": 4},
        mode="markers",
        name=label,
        marker={"color": color, "size": 10, "symbol": "diamond"},
        showlegend=legend,
        customdata=[with_interval(mean, sign=False) for mean in means],
        hovertemplate=f"%{{y}}, {label}: %{{customdata}}<extra></extra>",
        **where,
    )
