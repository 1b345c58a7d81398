"""Whether few pairs or many pulled answers down: the share that the hardest pairs make together."""

from __future__ import annotations

import plotly.graph_objects as go

from dynolab.report.figure import empty_plot
from dynolab.report.style import HISTORY, REJECTED
from dynolab.results.ledger_reader import Pulls

MARKED = (1, 10)
"""Numbers of pairs that are marked, beside the number that makes half."""


def concentration_plot(pulls: Pulls, height: int) -> go.Figure:
    """The share of the whole pull that the first pairs make, by their number, the hardest first.

    A dotted line shows the shares of pairs that all pull equally hard. Marks: one pair, ten pairs,
    and the fewest that make half.

    **Arguments:** `pulls`: of one pair at least; `height`: in pixels.
    """
    shares = pulls.shares.cumsum()
    pairs = len(shares)
    plot = empty_plot(height, showlegend=False, margin={"l": 64, "r": 24, "t": 16, "b": 48})
    plot.add_scatter(
        x=[0, pairs],
        y=[0, 1],
        mode="lines",
        line={"color": HISTORY, "dash": "dot"},
        hoverinfo="skip",
    )
    plot.add_scatter(
        x=list(range(pairs + 1)),
        y=[0.0, *shares.round(4).tolist()],
        text=["", *(push.example for push in pulls.pushers)],
        mode="lines",
        line={"color": REJECTED, "width": 3},
        hovertemplate="the first %{x} pairs, to %{text}: %{y:.1%}<extra></extra>",
    )
    marked = sorted({count for count in (*MARKED, pulls.half) if count <= pairs})
    plot.add_scatter(
        x=marked,
        y=[round(float(shares[count - 1]), 4) for count in marked],
        text=[f"{count}: {shares[count - 1]:.0%}" for count in marked],
        mode="markers+text",
        textposition=["top right", *["top left"] * (len(marked) - 1)],
        marker={"color": REJECTED, "size": 9},
        hoverinfo="skip",
    )
    plot.update_xaxes(title_text="pairs, the hardest first", rangemode="tozero")
    plot.update_yaxes(title_text="share of the pull down", tickformat=".0%", range=[0, 1.02])
    return plot
