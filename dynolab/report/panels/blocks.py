"""The figures of a force map's parts: by parameter block, and the last layer against the whole."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from dynolab.report.inputs.forces import CheckpointForces
from dynolab.report.style import (
    BEST,
    CHOSEN,
    DOWN,
    HISTORY,
    INK,
    PAPER,
    REJECTED,
    RESIDUAL,
    UP,
    ZERO,
    Plate,
    axis_key,
    axis_name,
    base_layout,
    columns,
    join,
    panel_title,
    plotly_text,
)

_CHECKPOINTS = (HISTORY, CHOSEN, BEST, UP, DOWN, REJECTED, RESIDUAL)
_POINTS = 2_000


def block_plate(checkpoints: Sequence[CheckpointForces]) -> Plate:
    """Bars: what of the map a block brings; ticks: how large its part is."""
    figure = go.Figure()
    blocks = [part.block for part in checkpoints[-1].facts.blocks]
    for index, one in enumerate(checkpoints):
        parts = {part.block: part for part in one.facts.blocks}
        there = [block for block in blocks if block in parts]
        shared = {"x": there, "offsetgroup": str(index), "legendgroup": str(index)}
        color = _CHECKPOINTS[index % len(_CHECKPOINTS)]
        figure.add_bar(
            y=[parts[block].projection for block in there],
            name=plotly_text(one.label, 32),
            marker={"color": color, "line": {"width": 0}},
            customdata=[parts[block].share for block in there],
            hovertemplate="%{x}: brings %{y:.1%} of the map, its own size is %{customdata:.1%}"
            "<extra>%{fullData.name}</extra>",
            **shared,
        )
        figure.add_scatter(
            y=[parts[block].share for block in there],
            mode="markers",
            hoverinfo="skip",
            showlegend=False,
            marker={"symbol": "line-ew", "size": 14, "line": {"color": INK, "width": 2}},
            **shared,
        )
    figure.update_layout(
        **base_layout(
            400,
            barmode="group",
            scattermode="group",
            bargap=0.3,
            yaxis={"tickformat": ".0%", "title": {"text": "part of the map"}},
            legend={
                "orientation": "h",
                "x": 0.8,
                "xanchor": "right",
                "y": 1.02,
                "yanchor": "bottom",
            },
        )
    )
    return Plate(
        "blocks",
        "Which parameters carry the force",
        _block_message(checkpoints),
        "Bars: ⟨F_b, F⟩/‖F‖², the share of the map F that a block's part F_b brings; they add up "
        "to one. Ticks: ‖F_b‖/‖F‖, the size of the part by itself; where tick and bar differ, "
        "blocks work against each other. A bar below zero: the block's part opposes the map.",
        figure,
    )


def _block_message(checkpoints: Sequence[CheckpointForces]) -> str:
    parts = []
    for one in checkpoints:
        most = sorted(one.facts.blocks, key=lambda part: -part.projection)[:2]
        said = [f"{part.block} ({part.projection:.0%})".replace("-", "−") for part in most]
        parts.append(f"at {one.label} {join(said)}")
    return f"Most of the force comes through these blocks: {'; '.join(parts)}."


def last_layer_plate(checkpoints: Sequence[CheckpointForces]) -> Plate | None:
    """Pair totals as the last layer alone predicts them, against the whole network's.

    Checkpoints whose last layer does not move, as under adapters, have no place in it.
    """
    checkpoints = [one for one in checkpoints if one.facts.last_layer.norm_ratio > 0]
    if not checkpoints:
        return None
    figure = go.Figure()
    layout = base_layout(450, margin={"l": 64, "r": 24, "t": 72, "b": 56})
    annotations = []
    for index, (one, domain) in enumerate(
        zip(checkpoints, columns(len(checkpoints), 0.06), strict=True), start=1
    ):
        axes = {"xaxis": axis_name("x", index), "yaxis": axis_name("y", index)}
        rows = one.totals[:: -(-len(one.totals) // _POINTS)]
        ends = [
            f(value)
            for f in (min, max)
            for value in ([row.from_head for row in rows] + [row.total for row in rows],)
        ]
        figure.add_scatter(
            x=ends,
            y=ends,
            mode="lines",
            line={"color": ZERO, "dash": "dash", "width": 1.5},
            hoverinfo="skip",
            showlegend=False,
            **axes,
        )
        for own, name, color in ((False, "other pairs", HISTORY), (True, "own answers", CHOSEN)):
            some = [row for row in rows if (row.observed_id == row.updating_id) == own]
            figure.add_scatter(
                x=[row.total for row in some],
                y=[row.from_head for row in some],
                mode="markers",
                name=name,
                legendgroup=name,
                showlegend=index == 1,
                marker={"color": color, "size": 6, "line": {"color": PAPER, "width": 0.5}},
                text=[
                    plotly_text(f"“{row.updating_id}” on {row.kind} of “{row.observed_id}”")
                    for row in some
                ],
                hovertemplate="%{text}<br>whole %{x:+.3g}, last layer %{y:+.3g} nats"
                "<extra></extra>",
                **axes,
            )
        layout[axis_key("x", index)] = {
            "domain": domain,
            "anchor": axes["yaxis"],
            "nticks": 5,
            "title": {"text": "whole network (nats)"},
        }
        layout[axis_key("y", index)] = {"anchor": axes["xaxis"], "nticks": 6}
        annotations.append(panel_title(plotly_text(one.label, 32), domain[0], 1.02))
    layout["yaxis"]["title"] = {"text": "last layer alone (nats)"}
    layout["annotations"] = annotations
    layout["legend"] = {
        "orientation": "h",
        "x": 0.8,
        "xanchor": "right",
        "y": 1.08,
        "yanchor": "bottom",
    }
    figure.update_layout(**layout)
    fits = [(one.label, one.facts.last_layer) for one in checkpoints]
    said = join(
        [
            f"{fit.cosine:.3f} at {label} ({fit.norm_ratio:.0%} of its size, "
            f"{fit.sign_agreement:.0%} of its signs)"
            for label, fit in fits
        ]
    )
    return Plate(
        "last-layer",
        "How far the last layer alone explains it",
        f"Token by token the last layer's map points where the whole network's does with cosine "
        f"{said}.",
        "A point: one updating pair on one observed answer, summed over tokens. The last layer's "
        "prediction holds the features fixed (the unconstrained-features picture); on the dashed "
        "line it would be all there is. Blue: answers of the updating pair itself.",
        figure,
    )
