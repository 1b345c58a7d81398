"""What moved an answer, step by step."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
from dash import html

from dynolab.explorer.lines import CHOSEN, REJECTED, Lines
from dynolab.explorer.page import parts
from dynolab.report.figure import LEGEND_ABOVE, base_layout
from dynolab.report.style import CHOSEN as BLUE, INK, REJECTED as RED

HEIGHT = 210


def shown(lines: Lines, pair: str, dark: bool) -> list[Any]:
    """A bar for each side at every step, of the pair that is chosen or of all."""
    if pair in lines.pairs:
        lines, by = lines.of_pair(pair), f"by {pair}"
    else:
        by = "by all pairs"
    if len(set(lines.step.tolist())) < 2:
        return []
    return [
        html.H3(f"Step by step, {by}"),
        parts.graph(_plot(lines), dark, "steps"),
    ]


def _plot(lines: Lines) -> go.Figure:
    figure = go.Figure()
    steps = sorted(set(lines.step.tolist()))
    sums = [0.0] * len(steps)
    for side, name, color in (
        (CHOSEN, "through chosen answers", BLUE),
        (REJECTED, "through rejected ones", RED),
    ):
        own = lines.side == side
        nats = [float(lines.nats[own & (lines.step == step)].sum()) for step in steps]
        sums = [total + more for total, more in zip(sums, nats, strict=True)]
        hover = f"step %{{x}}: %{{y:+.3g}} nats {name}<extra></extra>"
        figure.add_bar(
            x=steps, y=nats, name=name, marker_color=color, width=0.8, hovertemplate=hover
        )
    figure.add_scatter(
        x=steps,
        y=sums,
        name="both",
        mode="markers",
        marker={"color": INK, "size": 6, "symbol": "diamond"},
        hovertemplate="step %{x}: %{y:+.3g} nats in all<extra></extra>",
    )
    margin = {"l": 60, "r": 10, "t": 30, "b": 40}
    figure.update_layout(base_layout(HEIGHT, margin=margin, barmode="relative"))
    figure.update_layout(legend=LEGEND_ABOVE | {"y": 1.02})
    figure.update_xaxes(title_text="step", tickformat="d")
    figure.update_yaxes(title_text="nats")
    return figure
