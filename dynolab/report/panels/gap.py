"""The figure of the squeezing gap: how far y* lies above the chosen answer."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from dynolab.probes.paths import LearningPaths, change
from dynolab.report.panels.paths import Paths, stages_of
from dynolab.report.style import (
    INK,
    Plate,
    axis_key,
    axis_name,
    base_layout,
    columns,
    objective_name,
    panel_title,
    stage_title,
    style_of,
    with_interval,
)
from dynolab.results.study import ARGMAX
from dynolab.statistics import band, mean_interval


def gap_plate(paths: Paths) -> Plate | None:
    """y* and the chosen answer since step 0, the widening between them, and the gap itself."""
    stages = [s for s in stages_of(paths) if (p := paths.get((s, "train"))) and p.gap is not None]
    if not stages:
        return None
    figure = go.Figure()
    layout = base_layout(520, margin={"l": 64, "r": 24, "t": 64, "b": 52})
    annotations = []
    for column, (stage, domain) in enumerate(zip(stages, columns(len(stages), 0.06), strict=True)):
        upper, lower = 2 * column + 1, 2 * column + 2
        _add_gap_panel(figure, paths[(stage, "train")], upper, lower, legend=column == 0)
        for axis, height in ((upper, [0.44, 1.0]), (lower, [0.0, 0.32])):
            layout[axis_key("x", axis)] = {
                "domain": domain,
                "anchor": axis_name("y", axis),
                "showticklabels": axis == lower,
            }
            layout[axis_key("y", axis)] = {"domain": height, "anchor": axis_name("x", axis)}
            if column and axis == lower:
                layout[axis_key("y", axis)] |= {"matches": "y2", "showticklabels": False}
        layout[axis_key("x", lower)]["title"] = {"text": "step"}
        annotations.append(panel_title(stage_title(stage), domain[0], 1.01))
    layout["yaxis"]["title"] = {"text": "Δ log π since step 0"}
    layout["yaxis2"]["title"] = {"text": "gap y* − y⁺ (nats)"}
    layout["annotations"] = annotations
    layout["legend"] = {
        "orientation": "h",
        "x": 1,
        "xanchor": "right",
        "y": 1.03,
        "yanchor": "bottom",
    }
    figure.update_layout(**layout)
    return Plate(
        "gap",
        "The squeezing gap: from the chosen answer up to what the model prefers",
        _gap_message(paths),
        "Above: y* and the chosen answer y⁺ since step 0; the shaded distance is how far the gap "
        "has grown (y* above) or shrunk. Below: the gap log π(y*) − log π(y⁺) itself with its 95% "
        "band. y* can rise under any training; under squeezing y⁺ does not rise with it and "
        "the gap grows.",
        figure,
    )


def _add_gap_panel(
    figure: go.Figure, paths: LearningPaths, upper: int, lower: int, legend: bool
) -> None:
    top = {"xaxis": axis_name("x", upper), "yaxis": axis_name("y", upper)}
    for kind, fill in (("chosen", None), (ARGMAX, "tonexty")):
        mean = band(paths.since_start(kind))[0]
        style = style_of(kind)
        figure.add_scatter(
            x=paths.steps,
            y=mean.round(4),
            mode="lines",
            name=style.label,
            showlegend=legend,
            legendgroup=kind,
            line={"color": style.color, "width": 3},
            fill=fill,
            fillcolor="rgba(125, 75, 181, 0.15)" if fill else None,
            hovertemplate="<b>%{fullData.name}</b><br>step %{x}: %{y:+.2f} nats<extra></extra>",
            **top,
        )
    gap = paths.gap
    assert gap is not None, "stages without a gap are left out"
    mean, low, high = band(gap)
    bottom = {"xaxis": axis_name("x", lower), "yaxis": axis_name("y", lower), "showlegend": False}
    inside = np.isfinite(low)
    x = paths.steps[inside]
    figure.add_scatter(
        x=np.concatenate([x, x[::-1]]),
        y=np.concatenate([high[inside], low[inside][::-1]]),
        fill="toself",
        fillcolor=INK,
        opacity=0.12,
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        **bottom,
    )
    figure.add_scatter(
        x=paths.steps,
        y=mean.round(4),
        mode="lines",
        line={"color": INK, "width": 2.5},
        hovertemplate="step %{x}: gap %{y:.2f} nats<extra></extra>",
        **bottom,
    )


def _gap_message(paths: Paths) -> str:
    parts = []
    for stage in stages_of(paths):
        found = paths.get((stage, "train"))
        if found is None or found.gap is None:
            continue
        moved = mean_interval(change(found.gap))
        verb = "changes"
        if moved.low > 0 or moved.high < 0:
            verb = "widens" if moved.mean > 0 else "narrows"
        start, end = mean_interval(found.gap[0]).mean, mean_interval(found.gap[-1]).mean
        ends = f"from {start:.1f} to {end:.1f} nats ({with_interval(moved)})"
        parts.append(f"{objective_name(stage)} {verb} the gap {ends}")
    return "; ".join(parts) + "."
