"""The figure of predictions: first-order forces against what single steps measurably did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from dynolab.claims.study import unexplained
from dynolab.report.inputs.study import Training
from dynolab.report.style import (
    ZERO,
    Plate,
    axis_key,
    axis_name,
    base_layout,
    columns,
    in_order,
    join,
    objective_name,
    panel_title,
    plotly_text,
    rank_of,
    stage_title,
    style_of,
    with_interval,
)
from dynolab.results.study import ForceRow

_POINTS_PER_KIND = 150


def prediction_plate(trainings: Sequence[Training]) -> Plate | None:
    """Measured against predicted Δ log π of single answers, with the line of identity."""
    trainings = [training for training in trainings if training.forces]
    if not trainings:
        return None
    figure = go.Figure()
    layout = base_layout(500, margin={"l": 64, "r": 24, "t": 48, "b": 56})
    annotations, shown = [], set[str]()
    for index, (training, domain) in enumerate(
        zip(trainings, columns(len(trainings), 0.1), strict=True), start=1
    ):
        rows = training.forces
        _add_identity(figure, rows, index)
        for kind in sorted(in_order({r.kind for r in rows}), key=lambda k: style_of(k).prominent):
            _add_points(figure, [r for r in rows if r.kind == kind], index, kind not in shown)
            shown.add(kind)
        layout[axis_key("x", index)] = {
            "domain": domain,
            "anchor": axis_name("y", index),
            "title": {"text": "predicted Δ log π (nats)"},
        }
        layout[axis_key("y", index)] = {"anchor": axis_name("x", index)}
        annotations.append(panel_title(stage_title(training.stage), domain[0], 1.02))
    layout["yaxis"]["title"] = {"text": "measured Δ log π (nats)"}
    layout["annotations"] = annotations
    figure.update_layout(**layout)
    thinned = f"At most {_POINTS_PER_KIND} points a kind are drawn, all are counted."
    return Plate(
        "prediction",
        "Do the forces explain what a step did?",
        _message(trainings),
        "A point: one answer over one recorded step; open circles are answers to prompts outside "
        "the step's own batch. Predicted: the gradient of log π, taken midway through the step, "
        "times the change that the step made to the weights. On the dashed line that is exact. "
        "1 − R² = Σ(measured − predicted)² / Σ measured²; predicting no change would leave all, 1. "
        + (thinned if _thinned(trainings) else ""),
        figure,
    )


def _thinned(trainings: Sequence[Training]) -> bool:
    counts = Counter(
        (training.stage, row.kind) for training in trainings for row in training.forces
    )
    return max(counts.values(), default=0) > _POINTS_PER_KIND


def _add_identity(figure: go.Figure, rows: Sequence[ForceRow], index: int) -> None:
    ends = np.array([[row.measured, row.predicted] for row in rows])
    low, high = float(np.nanmin(ends)), float(np.nanmax(ends))
    pad = 0.04 * (high - low)
    figure.add_scatter(
        x=[low - pad, high + pad],
        y=[low - pad, high + pad],
        mode="lines",
        showlegend=False,
        line={"color": ZERO, "dash": "dash", "width": 1.5},
        hoverinfo="skip",
        xaxis=axis_name("x", index),
        yaxis=axis_name("y", index),
    )


def _add_points(figure: go.Figure, rows: Sequence[ForceRow], index: int, legend: bool) -> None:
    """Every n-th row, so that a large study stays light and a small one whole."""
    rows = rows[:: -(-len(rows) // _POINTS_PER_KIND)]
    style = style_of(rows[0].kind)
    figure.add_scatter(
        x=[round(row.predicted, 6) for row in rows],
        y=[round(row.measured, 6) for row in rows],
        mode="markers",
        name=style.label,
        legendgroup=style.label,
        showlegend=legend,
        legendrank=rank_of(rows[0].kind),
        opacity=0.75 if style.prominent else 0.5,
        marker={
            "color": style.color,
            "size": 7 if style.prominent else 5,
            "symbol": ["circle" if row.in_batch else "circle-open" for row in rows],
        },
        customdata=[
            f"step {row.step}, {plotly_text(row.pair_id, 32)}, "
            + ("in the step's batch" if row.in_batch else "not in the step's batch")
            for row in rows
        ],
        hovertemplate="<b>%{fullData.name}</b><br>%{customdata}<br>predicted %{x:+.4f}, "
        "measured %{y:+.4f}<extra></extra>",
        xaxis=axis_name("x", index),
        yaxis=axis_name("y", index),
    )


def _message(trainings: Sequence[Training]) -> str:
    parts = []
    for training in trainings:
        rows, steps = training.forces, len({row.step for row in training.forces})
        left = with_interval(unexplained(rows), sign=False)
        parts.append(
            f"{left} under {objective_name(training.stage)} ({len(rows)} changes of answers at "
            f"{steps} recorded step{'s' if steps > 1 else ''})"
        )
    return f"Of the squared change of log π, first-order forces leave unexplained {join(parts)}."
