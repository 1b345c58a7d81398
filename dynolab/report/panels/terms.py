"""The figure of A and G token by token: how sensitive an answer is, how hard a loss pulls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from dynolab.report.inputs.forces import CheckpointForces
from dynolab.report.style import (
    Plate,
    axis_key,
    axis_name,
    base_layout,
    columns,
    in_order,
    join,
    number,
    panel_title,
    plotly_text,
    style_of,
    token_text,
)
from dynolab.results.forces import ResponseTermsRow

_PANELS = (
    ("observed", "‖A‖ of observed tokens", lambda row: np.array(row.a_norm)),
    ("updating", "energy 1 − π of updating tokens", lambda row: np.array(row.energy)),
    ("updating", "size of the force ‖G‖", lambda row: np.array(row.g_norm)),
)
_POINTS = 400  # of one box


def terms_plate(checkpoints: Sequence[CheckpointForces]) -> Plate:
    """Boxes over tokens, by checkpoint and kind of answer."""
    figure = go.Figure()
    layout = base_layout(
        420, boxmode="group", boxgap=0.25, margin={"l": 64, "r": 24, "t": 76, "b": 48}
    )
    annotations, shown = [], set[str]()
    for index, ((role, title, value), domain) in enumerate(
        zip(_PANELS, columns(len(_PANELS), 0.06), strict=True), start=1
    ):
        rows = [(one.label, row) for one in checkpoints for row in one.terms if row.role == role]
        for kind in in_order({row.kind for _, row in rows}):
            some = [(label, row) for label, row in rows if row.kind == kind]
            x = [plotly_text(label, 16) for label, row in some for _ in row.tokens]
            y = np.concatenate([value(row) for _, row in some])
            text = [
                f"{token_text(token)} of {plotly_text(row.id, 24)}"
                for _, row in some
                for token in row.tokens
            ]
            every = slice(None, None, -(-len(x) // (_POINTS * len(checkpoints))))
            style = style_of(kind)
            figure.add_box(
                x=x[every],
                y=y[every],
                text=text[every],
                name=style.label,
                legendgroup=kind,
                showlegend=kind not in shown,
                line={"color": style.color, "width": 1.4},
                marker={"color": style.color, "size": 4},
                boxpoints="outliers",
                xaxis=axis_name("x", index),
                yaxis=axis_name("y", index),
                hovertemplate="%{text}: %{y:.3g}<extra>%{fullData.name}</extra>",
            )
            shown.add(kind)
        layout[axis_key("x", index)] = {"domain": domain, "anchor": axis_name("y", index)}
        layout[axis_key("y", index)] = {"anchor": axis_name("x", index), "nticks": 6}
        annotations.append(panel_title(title, domain[0], 1.02))
    layout["annotations"] = annotations
    layout["legend"] = {
        "orientation": "h",
        "x": 0.8,
        "xanchor": "right",
        "y": 1.1,
        "yanchor": "bottom",
    }
    figure.update_layout(**layout)
    return Plate(
        "terms",
        "What the tokens bring: A and G",
        _message(checkpoints),
        "In Δ log π = −η·A·K·G, A = I − 1πᵀ is how log π answers to its logits (its norm is least "
        "for an undecided model, largest for a sure one), and G = Σ c(π − e)/T the loss's force "
        "on an updating token: c is its dynamic learning rate, 1 − π its energy, and the sum has "
        "one term but where a loss weighs several tokens at a position. Boxes: quartiles "
        "over tokens, whiskers up to 1.5 times their distance; points lie beyond.",
        figure,
    )


def _message(checkpoints: Sequence[CheckpointForces]) -> str:
    parts = []
    for one in checkpoints:
        sides = [
            f"{number(_median(rows), 2)} on {kind} tokens"
            for kind in ("chosen", "rejected")
            if (rows := [r for r in one.terms if r.role == "updating" and r.kind == kind])
        ]
        parts.append(f"at {one.label} {join(sides)}")
    return f"The median energy 1 − π of an updating token is {'; '.join(parts)}."


def _median(rows: Sequence[ResponseTermsRow]) -> float:
    return float(np.median(np.concatenate([row.energy for row in rows])))
