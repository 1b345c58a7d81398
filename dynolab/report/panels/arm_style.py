"""How the arms of a comparison look, and the figure that sets them side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from dynolab.comparisons.group_arms import ArmTable
from dynolab.report.style import (
    BEST,
    CHOSEN,
    DOWN,
    HISTORY,
    INK,
    REJECTED,
    RESIDUAL,
    UP,
    axis_key,
    axis_name,
    base_layout,
    columns,
    panel_title,
    plotly_text,
    with_interval,
)

_COLORS = (CHOSEN, UP, BEST, RESIDUAL, REJECTED, DOWN, HISTORY)
_DASHES = ("solid", "dash", "dot", "dashdot")


def arm_style(place: int) -> tuple[str, str]:
    """Colour and dash of the arm at a place; dashes where colours are used up."""
    return _COLORS[place % len(_COLORS)], _DASHES[place // len(_COLORS) % len(_DASHES)]


@dataclass(frozen=True)
class DotPanel:
    """A panel of arms side by side: figures by the names that the legend gives them."""

    title: str
    unit: str
    figures: Mapping[str, str]
    tickformat: str = ""
    zero: bool = False


_SPLIT_COLORS = (INK, CHOSEN, BEST)


def dot_figure(figures: ArmTable, arms: Sequence[str], panels: Sequence[DotPanel]) -> go.Figure:
    """Means over seeds with intervals, and every seed's own value as a small dot."""
    figure = go.Figure()
    layout = base_layout(400, scattermode="group", margin={"l": 64, "r": 24, "t": 56, "b": 48})
    named = [plotly_text(arm, 32) for arm in arms]
    told, annotations = set[str](), []
    for index, (panel, domain) in enumerate(
        zip(panels, columns(len(panels), 0.08), strict=True), start=1
    ):
        axes = {"xaxis": axis_name("x", index), "yaxis": axis_name("y", index)}
        for place, (label, name) in enumerate(panel.figures.items()):
            _add_dots(
                figure,
                figures,
                arms,
                label,
                name,
                _SPLIT_COLORS[place % 3],
                {**axes, "offsetgroup": str(place), "legendgroup": label},
                label not in told,
            )
            told.add(label)
        layout[axis_key("x", index)] = {
            "domain": domain,
            "anchor": axes["yaxis"],
            "type": "category",
            "showgrid": False,
            "categoryorder": "array",
            "categoryarray": named,
        }
        layout[axis_key("y", index)] = {
            "anchor": axes["xaxis"],
            "title": {"text": panel.unit},
            "tickformat": panel.tickformat,
            "zeroline": panel.zero,
            "range": range_of(figures, arms, panel),
        }
        annotations.append(panel_title(panel.title, domain[0], 1.02))
    layout["annotations"] = annotations
    figure.update_layout(**layout, showlegend=len(told) > 1)
    return figure


def range_of(figures: ArmTable, arms: Sequence[str], panel: DotPanel) -> list[float] | None:
    """Holds every interval and dot, which plotly's own choice does not."""
    shown = [0.0] if panel.zero else []
    for name in panel.figures.values():
        for arm in arms:
            mean = figures.mean(arm, name)
            shown += [mean.low, mean.high, *map(float, figures.values(arm, name))]
    finite = [value for value in shown if np.isfinite(value)]
    if not finite or min(finite) == max(finite):
        return None
    room = 0.06 * (max(finite) - min(finite))
    return [min(finite) - room, max(finite) + room]


def _add_dots(
    figure: go.Figure,
    figures: ArmTable,
    arms: Sequence[str],
    label: str,
    name: str,
    color: str,
    where: Mapping[str, str],
    legend: bool,
) -> None:
    means = [figures.mean(arm, name) for arm in arms]
    there = [(arm, mean) for arm, mean in zip(arms, means, strict=True) if mean.n]
    if not there:
        return
    named = [plotly_text(arm, 32) for arm, _ in there]
    seeds = [
        (title, value)
        for title, (arm, _) in zip(named, there, strict=True)
        for value in figures.values(arm, name)
        if np.isfinite(value)
    ]
    figure.add_scatter(
        x=[title for title, _ in seeds],
        y=[round(float(value), 6) for _, value in seeds],
        mode="markers",
        marker={"color": color, "size": 5, "opacity": 0.45},
        showlegend=False,
        hovertemplate="%{x}, one seed: %{y:.4g}<extra></extra>",
        **where,
    )
    half = [mean.high - mean.mean if np.isfinite(mean.high) else None for _, mean in there]
    figure.add_scatter(
        x=named,
        y=[round(mean.mean, 6) for _, mean in there],
        mode="markers",
        name=label,
        marker={"color": color, "size": 10, "symbol": "diamond"},
        showlegend=legend,
        error_y={"array": half, "color": color, "thickness": 1.5, "width": 4},
        customdata=[with_interval(mean, sign=False) for _, mean in there],
        hovertemplate=f"%{{x}}, {label}: %{{customdata}}<extra></extra>",
        **where,
    )
