"""Tables of the pairs that pushed an answer, or one of its tokens."""

from __future__ import annotations

from typing import Any

from dash import html

from dynolab.explorer.lines import Lines, PairPush
from dynolab.explorer.page import parts
from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from dynolab.report.text import excerpt

SHOWN, PER_TOKEN = 10, 5
"""Pairs of each direction in a table."""

HEAD = ("pair", "nats", "its chosen", "its rejected", "at steps", "its answers", "")


def tables(
    study: Study, lines: Lines, state: State, what: str = "it", when: str = "", most: int = SHOWN
) -> list[Any]:
    """Who pulled the only answer of `lines` down, and who held it up, hardest first.

    **Arguments:** `what`: its name in the headings, and `when`: what follows it.
    """
    pushes = lines.pushers(0)
    down = [push for push in pushes if push.total < 0][:most]
    up = [push for push in reversed(pushes) if push.total > 0][:most]
    return [
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


def _pusher(study: Study, push: PairPush, state: State) -> list[Any]:
    return [
        parts.link(push.pair, state.link(pair=push.pair), title="its map on this answer"),
        parts.nats(push.total),
        parts.nats(push.from_chosen),
        parts.nats(push.from_rejected),
        parts.listed(push.steps),
        answers_of(study, push.pair),
        parts.link(
            "left out" if push.pair in state.without else "leave out", state.toggled(push.pair)
        ),
    ]
