"""The first picture of a comparison of remedies: what each one gives, and what it takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynolab.claims.arms import EVEN, WON
from dynolab.comparisons.arm_table import ArmTable
from dynolab.report.figure import LEGEND_ABOVE, Figure, empty_plot
from dynolab.report.page import Words
from dynolab.report.style import (
    DIVERGING,
    INK,
    MUTED,
    REJECTED,
    plotly_text,
    points,
    with_interval,
)
from dynolab.report.tables import RIGHT_ANSWERS, losses
from dynolab.statistics import Interval, clear

MARGIN = "train/margin"
HEIGHT = 460
_SIDES = ("top center", "bottom center")


def trade_figure(figures: ArmTable, runs: Sequence[str], baseline: str) -> Figure | None:
    """Every run by how much more margin it learned than the baseline, and how much higher its
    chosen answers ended, held out if these were probed; None without such a run.

    **Arguments:** `runs`: all but the baseline.
    """
    chosen = "heldout/chosen" if "heldout/chosen" in figures.names else "train/chosen"
    gained = {run: figures.difference(run, baseline, MARGIN) for run in runs}
    raised = {run: figures.difference(run, baseline, chosen) for run in runs}
    shown = [run for run in runs if gained[run].n and raised[run].n]
    if not shown:
        return None
    lost = {run: losses(figures, run, baseline) for run in shown}
    ringed = [run for run in shown if {*lost[run]} & {*RIGHT_ANSWERS}]
    won = {run: figures.mean(run, WON) for run in shown}
    shares = [won[run].mean if won[run].n else EVEN for run in shown]
    reach = max(0.1, *(abs(share - EVEN) for share in shares))
    plot = empty_plot(HEIGHT, legend=LEGEND_ABOVE, margin={"l": 64, "r": 24, "t": 56, "b": 56})
    if ringed:
        plot.add_scatter(
            x=[gained[run].mean for run in ringed],
            y=[raised[run].mean for run in ringed],
            mode="markers",
            name="right answers fell clearly",
            marker={"symbol": "circle-open", "size": 24, "color": REJECTED, "line": {"width": 2.5}},
            hoverinfo="skip",
        )
    plot.add_scatter(
        x=[gained[run].mean for run in shown],
        y=[raised[run].mean for run in shown],
        error_x=_bars([gained[run] for run in shown]),
        error_y=_bars([raised[run] for run in shown]),
        mode="markers+text",
        text=[plotly_text(run, 20) for run in shown],
        textposition=[_SIDES[place % 2] for place in range(len(shown))],
        cliponaxis=False,
        showlegend=False,
        marker={
            "size": 13,
            "color": shares,
            "colorscale": DIVERGING,
            "cmin": EVEN - reach,
            "cmax": EVEN + reach,
            "line": {"color": MUTED, "width": 1},
            "colorbar": {"title": {"text": "preferred"}, "tickformat": ".0%", "thickness": 12},
        },
        customdata=[
            f"margin {with_interval(gained[run])}, chosen {with_interval(raised[run])} nats, "
            f"preferred {points(won[run], sign=False) if won[run].n else '–'} %"
            for run in shown
        ],
        hovertemplate="<b>%{text}</b><br>%{customdata}<extra></extra>",
    )
    name = plotly_text(baseline, 20)
    plot.add_annotation(x=0, y=0, text=name, showarrow=False, xanchor="right", yanchor="top")
    crossing = {"color": INK, "width": 1}
    plot.add_vline(x=0, line=crossing, layer="below").add_hline(y=0, line=crossing, layer="below")
    plot.update_xaxes(title_text=f"Δ margin against {name}, nats")
    plot.update_yaxes(title_text="Δ chosen y⁺, nats")
    higher = [run for run in shown if clear(raised[run]) and raised[run].mean > 0]
    words = Words(
        "mitigation.html",
        baseline=baseline,
        heldout=chosen != "train/chosen",
        runs=len(shown),
        higher=higher,
        narrower=[run for run in higher if clear(gained[run]) and gained[run].mean < 0],
        lost=[run for run in higher if lost[run]],
    )
    return words.figure("trade", plot)


def _bars(changes: Sequence[Interval]) -> dict[str, object]:
    """Error bars to the ends of the intervals, which lie as far on both sides; of one seed none."""
    widths = np.nan_to_num([change.high - change.mean for change in changes])
    return {"array": widths.tolist(), "color": MUTED, "thickness": 1.2, "width": 3}
