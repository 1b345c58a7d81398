"""Shared by all figures: layout, panels side by side, bands, menus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from numpy import ndarray
from plotly.subplots import make_subplots

from dynolab.report.style import FONT, GRID, INK, MUTED, PAPER, ZERO


@dataclass(frozen=True)
class Figure:
    """A plot with its texts: `message` is computed from the data, `note` says how to read it.

    `beside`: HTML to the right of the plot.
    """

    name: str
    title: str
    message: str
    note: str
    plot: go.Figure
    beside: str = ""


_AXIS: dict[str, Any] = {
    "gridcolor": GRID,
    "zerolinecolor": ZERO,
    "zerolinewidth": 1.2,
    "linecolor": ZERO,
    "ticks": "outside",
    "tickcolor": ZERO,
    "ticklen": 4,
    "tickfont": {"color": MUTED, "size": 12},
    "title": {"font": {"color": MUTED, "size": 13}, "standoff": 8},
    "automargin": True,
}
TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "hoverlabel": {
            "bgcolor": PAPER,
            "bordercolor": ZERO,
            "align": "left",
            "font": {"family": FONT, "color": INK, "size": 13},
        },
        "hovermode": "closest",
        "legend": {
            "font": {"size": 12},
            "grouptitlefont": {"size": 11, "color": MUTED},
            "tracegroupgap": 0,
            "itemclick": "toggle",
            "itemdoubleclick": "toggleothers",
        },
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "autotypenumbers": "strict",
    }
)

LEGEND_ABOVE: dict[str, Any] = {
    "orientation": "h",
    "x": 0.82,  # left of the buttons that plotly shows over a figure
    "xanchor": "right",
    "y": 1.02,
    "yanchor": "bottom",
}
LEGEND_OVER_TITLES = LEGEND_ABOVE | {"y": 1.1}
LEGEND_BELOW = LEGEND_ABOVE | {"x": 1, "y": -0.22, "yanchor": "top"}
CELLS = {"showgrid": False, "zeroline": False}
"""Axes of a heat map."""


def base_layout(height: int, **more: Any) -> dict[str, Any]:
    """The layout that all figures share."""
    return {
        "template": TEMPLATE,
        "height": height,
        "margin": {"l": 64, "r": 24, "t": 48, "b": 52},
        "uirevision": "keep",
        **more,
    }


def empty_plot(height: int, **layout: Any) -> go.Figure:
    """A plot of one panel, with the layout that all figures share."""
    return go.Figure(layout=base_layout(height, **layout))


def subplots(
    titles: Sequence[str],
    height: int,
    *,
    space: float = 0.08,
    shared_y: bool = False,
    row_heights: Sequence[float] = (1,),
    x: Mapping[str, Any] | None = None,
    y: Mapping[str, Any] | None = None,
    y_title: str = "",
    **layout: Any,
) -> go.Figure:
    """Panels side by side, each under its title; `row=…, col=…` adds a trace to one.

    **Arguments:** `titles`: already escaped for plotly; `space`: between panels, as a fraction of
    the width; `row_heights`: of rows of panels that share their x axes; `x`,
    `y`: settings of all panels' axes; `y_title`: of the first panel only; `layout`: of the whole
    figure.
    """
    plot = make_subplots(
        rows=len(row_heights),
        cols=len(titles),
        row_heights=list(row_heights),
        horizontal_spacing=space,
        vertical_spacing=0.1,
        shared_xaxes=len(row_heights) > 1,
        shared_yaxes=shared_y,
    )
    plot.update_layout(base_layout(height, **layout))
    plot.update_xaxes(x).update_yaxes(y)
    if y_title:
        plot.update_yaxes(title_text=y_title, row=1, col=1)
    for col, title in enumerate(titles, start=1):
        heading = panel_title(title, 0, 1.02, xref="x domain", yref="y domain")
        plot.add_annotation(heading, row=1, col=col)
    return plot


def panel_title(text: str, x: float, y: float, **more: Any) -> dict[str, Any]:
    """A bold heading over a panel."""
    return {
        "text": f"<b>{text}</b>",
        "x": x,
        "y": y,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 14},
        **more,
    }


def outline(
    x: Sequence[float] | ndarray, low: Float[ndarray, " x"], high: Float[ndarray, " x"]
) -> tuple[ndarray, ndarray]:
    """x and y of the line around the area from `low` to `high`, without NaN."""
    finite = np.isfinite(low)
    at, upper, lower = np.asarray(x)[finite], high[finite], low[finite]
    return np.concatenate([at, at[::-1]]), np.concatenate([upper, lower[::-1]]).round(6)


def add_diagonal(plot: go.Figure, ends: Sequence[float], slope: int = 1, **where: Any) -> None:
    """A dashed line on which y is `slope` times x."""
    plot.add_scatter(
        x=list(ends),
        y=[slope * end for end in ends],
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
        line={"color": ZERO, "dash": "dash", "width": 1.5},
        **where,
    )


def in_panel(col: int, name: str, group: str = "", row: int = 1) -> dict[str, Any]:
    """Where a trace is drawn, and its entry in the legend, which is that of the first panel."""
    legend = {"legendgroup": group or name, "showlegend": col == 1}
    return {"name": name, **legend, "row": row, "col": col}


def dot(color: str, size: int = 6) -> dict[str, Any]:
    """The look of a dot among others: a thin line parts it from those below."""
    return {"color": color, "size": size, "line": {"color": PAPER, "width": 0.5}}


def correlation_plot(height: int, **cells: Any) -> go.Figure:
    """A heat map of named rows by named columns with its numbers in the cells."""
    ticks = {**CELLS, "type": "category"}
    plot = empty_plot(height, xaxis=ticks, yaxis={**ticks, "autorange": "reversed"})
    hover = "%{x} and %{y}: %{z:.3f}<extra></extra>"
    return plot.add_heatmap(xgap=2, ygap=2, texttemplate="%{text}", hovertemplate=hover, **cells)


def menu(choices: list[tuple[str, list[Any]]], y: float = 1.02, **look: Any) -> dict[str, Any]:
    """A drop-down list at the figure's upper right; the first choice is active at first."""
    return {
        "type": "dropdown",
        "x": 1.0,
        "xanchor": "right",
        "y": y,
        "yanchor": "bottom",
        "bgcolor": PAPER,
        "bordercolor": ZERO,
        "font": {"size": 12, "color": MUTED},
        "buttons": [{"label": label, "method": "update", "args": args} for label, args in choices],
        **look,
    }


def buttons(choices: list[tuple[str, list[Any]]], y: float) -> dict[str, Any]:
    """The choices as a row of buttons."""
    return menu(choices, y, type="buttons", direction="right", pad={"t": 0, "b": 0})
