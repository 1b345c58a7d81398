"""Who pushed an answer, or one of its tokens: tables of pairs, and bars step by step."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
from dash import html

from dynolab.data.rows import rows_by_source
from dynolab.explorer.lines import CHOSEN, REJECTED, Lines
from dynolab.explorer.page import parts
from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from dynolab.report.figure import LEGEND_ABOVE, base_layout
from dynolab.report.style import CHOSEN as BLUE, INK, REJECTED as RED
from dynolab.report.text import excerpt
from dynolab.results.ledger import Pusher

SHOWN, PER_TOKEN = 10, 5
"""Pairs of each direction in a table."""

PLOT_HEIGHT = 210

HEAD = ("pair", "nats", "its chosen", "its rejected", "at steps", "its answers", "")


_SUMS = ("total", "from_chosen", "from_rejected")


def tables(
    study: Study, lines: Lines, state: State, what: str = "it", when: str = "", most: int = SHOWN
) -> list[Any]:
    """Who pulled the only answer of `lines` down, and who held it up, hardest first; before them
    the sums of each source of mixed data.

    **Arguments:** `what`: its name in the headings, and `when`: what follows it.
    """
    pushes = lines.pushers(0)
    down = [push for push in pushes if push.total < 0][:most]
    up = [push for push in reversed(pushes) if push.total > 0][:most]
    sources = [
        [source, *(parts.nats(sum(getattr(pushes[at], side) for at in places)) for side in _SUMS)]
        for source, places in rows_by_source([push.example for push in pushes]).items()
    ]
    by_source = [html.H3(f"By source{when}"), parts.table(("source", *HEAD[1:4]), sources, "snnn")]
    return by_source * bool(sources) + [
        part
        for title, own in ((f"Who pulled {what} down", down), (f"Who held {what} up", up))
        if own
        for part in (
            html.H3(f"{title}{when}"),
            parts.table(HEAD, [_pusher(study, push, state) for push in own], "snnnsss"),
        )
    ]


def answers_of(study: Study, pair: str) -> list[Any]:
    """The beginnings of a pair's answers."""
    row = study.pairs.get(pair)
    texts = [] if row is None else [("y⁺ ", row.chosen), ("y⁻ ", row.rejected or "")]
    return [html.Div([side, parts.said(excerpt(text, 60))]) for side, text in texts if text]


def _pusher(study: Study, push: Pusher, state: State) -> list[Any]:
    return [
        parts.link(push.example, state.link(pair=push.example), title="its map on this answer"),
        parts.nats(push.total),
        parts.nats(push.from_chosen),
        parts.nats(push.from_rejected),
        parts.listed(push.steps),
        answers_of(study, push.example),
        parts.link(
            "left out" if push.example in state.without else "leave out",
            state.toggled(push.example),
        ),
    ]


def over_steps(lines: Lines, pair: str, dark: bool) -> list[Any]:
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
    figure.update_layout(
        base_layout(
            PLOT_HEIGHT,
            margin={"l": 60, "r": 10, "t": 30, "b": 40},
            barmode="relative",
            legend=LEGEND_ABOVE | {"y": 1.02},
        )
    )
    figure.update_xaxes(title_text="step", tickformat="d")
    figure.update_yaxes(title_text="nats")
    return figure
