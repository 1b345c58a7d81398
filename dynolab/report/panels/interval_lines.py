"""Panels of lines with their intervals, side by side under one legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import plotly.graph_objects as go

from dynolab.report.panels.arm_style import arm_style
from dynolab.report.style import (
    axis_key,
    axis_name,
    base_layout,
    columns,
    panel_title,
    plotly_text,
    with_interval,
)
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

    `ticks`: labels of the places 0, 1, … where x are places and no numbers.
    """

    title: str
    x_title: str
    unit: str
    lines: Sequence[Line]
    tickformat: str = ""
    zero: bool = False
    ticks: Sequence[str] = field(default=())


def line_figure(
    panels: Sequence[LinePanel], *, named: Mapping[str, str] | None = None, height: int = 400
) -> go.Figure:
    """A figure of panels; a line's name has one colour in all of them.

    **Arguments:** `named`: what the legend calls lines, where not by their names; colours go by
    its order first.
    """
    names = named or {}
    order = list(dict.fromkeys([*names, *(line.name for one in panels for line in one.lines)]))
    figure, annotations, told = go.Figure(), [], set[str]()
    layout = base_layout(
        height,
        margin={"l": 64, "r": 24, "t": 56, "b": 92},
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": -0.2, "yanchor": "top"},
    )
    for index, (panel, domain) in enumerate(
        zip(panels, columns(len(panels), 0.09), strict=True), start=1
    ):
        axes = {"xaxis": axis_name("x", index), "yaxis": axis_name("y", index)}
        for line in panel.lines:
            label = plotly_text(names.get(line.name, line.name), 40)
            _add(figure, line, label, order.index(line.name), panel, axes, line.name not in told)
            told.add(line.name)
        ticks = {"tickvals": list(range(len(panel.ticks))), "ticktext": list(panel.ticks)}
        layout[axis_key("x", index)] = {
            "domain": domain,
            "anchor": axes["yaxis"],
            "title": {"text": panel.x_title},
            **(ticks if panel.ticks else {}),
        }
        layout[axis_key("y", index)] = {
            "anchor": axes["xaxis"],
            "title": {"text": panel.unit},
            "tickformat": panel.tickformat,
            "zeroline": panel.zero,
            **({"rangemode": "tozero"} if panel.zero else {}),
        }
        annotations.append(panel_title(panel.title, domain[0], 1.02))
    layout["annotations"] = annotations
    figure.update_layout(**layout, showlegend=len(told) > 1)
    return figure


def _add(
    figure: go.Figure,
    line: Line,
    label: str,
    place: int,
    panel: LinePanel,
    axes: Mapping[str, str],
    legend: bool,
) -> None:
    color, dash = arm_style(place)
    x = np.array(line.x, dtype=float)
    low, high = (np.array([getattr(one, end) for one in line.intervals]) for end in ("low", "high"))
    inside = np.isfinite(low)
    common = {"legendgroup": line.name, **axes}
    figure.add_scatter(
        x=np.concatenate([x[inside], x[inside][::-1]]),
        y=np.concatenate([high[inside], low[inside][::-1]]).round(6),
        fill="toself",
        fillcolor=color,
        opacity=0.1,
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
        **common,
    )
    at = [panel.ticks[int(one)] for one in x] if panel.ticks else [f"{one:g}" for one in x]
    figure.add_scatter(
        x=x,
        y=np.array([one.mean for one in line.intervals]).round(6),
        name=label,
        mode="lines+markers" if len(x) <= 12 else "lines",
        showlegend=legend and not line.dotted,
        line={
            "color": color,
            "dash": "dot" if line.dotted else dash,
            "width": 1.5 if line.dotted else 2.5,
        },
        customdata=[
            f"{where}: {with_interval(one, sign=False)}"
            for where, one in zip(at, line.intervals, strict=True)
        ],
        hovertemplate=f"{label}, {plotly_text(panel.x_title, 40)} %{{customdata}}<extra></extra>",
        **common,
    )
