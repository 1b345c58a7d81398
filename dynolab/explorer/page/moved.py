"""What moved an answer, or one of its tokens: a sentence, tables of pairs, bars by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from dash import html

from dynolab.data.rows import ProbeRow, rows_by_source
from dynolab.explorer.lines import CHOSEN, REJECTED, Lines, lines_to_answer
from dynolab.explorer.page import parts
from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from dynolab.explorer.training import Training
from dynolab.report.figure import LEGEND_ABOVE, base_layout
from dynolab.report.ledger.concentration import concentration_plot
from dynolab.report.ledger.fallen import half_of_a_fall
from dynolab.report.style import CHOSEN as BLUE, INK, REJECTED as RED, excerpt, percent
from dynolab.results.ledger_reader import Pulls, Pusher


@dataclass(frozen=True)
class Moved:
    """The lines to an answer, and whether they are the ledger's or of recorded `steps` alone."""

    lines: Lines
    stored: bool
    steps: Sequence[int]

    def extent(self, state: State) -> str:
        """The steps that the lines are of."""
        if self.stored:
            return "over the whole training" if state.step is None else f"at step {state.step}"
        listed = ", ".join(map(str, self.steps))
        return f"at recorded step{'s' if len(self.steps) > 1 else ''} {listed}"


def what_moved(
    training: Training,
    row: ProbeRow,
    state: State,
    recorded: Sequence[int],
    *,
    ledger: bool = True,
) -> Moved | None:
    """The lines to an answer: the ledger's, else those of recorded steps; None without either.

    **Arguments:** `ledger`: off for those of recorded steps, as another training's are.
    """
    if ledger and state.metric == "optimizer":
        stored = lines_to_answer(training.ledger, row, state.step)
        if stored is not None:
            return Moved(stored, True, recorded)
    if not recorded:
        return None
    steps = recorded if state.step is None else [nearest(recorded, state.step)]
    return Moved(training.lines_to(row, steps, state.asked), False, steps)


def nearest(steps: Sequence[int], step: int) -> int:
    """The step of some steps that is nearest to another."""
    return min(steps, key=lambda other: abs(other - step))


def step_of_map(recorded: Sequence[int], lines: Lines, state: State) -> int:
    """The recorded step of maps: the chosen one, else where the pair pushed hardest, or nearest."""
    if state.step is not None:
        return nearest(recorded, state.step)
    among = lines.pair == state.pair if state.pair else lines.step >= 0
    if not among.any():
        return recorded[-1]
    pushes = {
        step: abs(lines.nats[among & (lines.step == step)].sum()) for step in set(lines.step[among])
    }
    return nearest(recorded, max(pushes, key=lambda step: pushes[step]))


def sentence(moved: Moved, state: State) -> Any:
    """Where the change came from."""
    lines = moved.lines
    chosen, rejected = (float(lines.through(side)[0]) for side in (CHOSEN, REJECTED))
    apart = [
        f"{parts.nats(float(nats[0]))} {name}"
        for name, nats in lines.apart.items()
        if abs(nats[0]) > 5e-4
    ]
    sums = ", ".join(
        [
            f"{parts.nats(chosen)} through chosen answers",
            f"{parts.nats(rejected)} through rejected ones",
            *apart,
        ]
    )
    rest = "is left over"
    if state.metric == "gradient":  # the change is measured over the optimizer's step
        rest = "is what the optimizer’s step did beyond a gradient step"
    elif moved.stored and state.step is not None:
        rest = "is left over, or what momentum carried here from other steps and on to them"
    return html.P(
        f"{parts.nats(float(lines.measured[0]))} nats {moved.extent(state)}: {sums}; "
        f"{parts.nats(float(lines.residual[0]))} {rest}.",
        className="message",
    )


SHOWN, PER_TOKEN = 10, 5
"""Pairs of each direction in a table."""

PLOT_HEIGHT = 210

HEAD = (
    "pair",
    "share",
    "nats",
    "its chosen",
    "its rejected",
    "at steps",
    "its answers",
    "without it",
)


_SUMS = ("total", "from_chosen", "from_rejected")


def pusher_tables(
    study: Study, lines: Lines, state: State, what: str = "it", when: str = "", most: int = SHOWN
) -> list[Any]:
    """Who pulled the only answer of `lines` down, and who held it up, hardest first; before them
    the sums of each source of mixed data.

    **Arguments:** `what`: its name in the headings, and `when`: what follows it.
    """
    pushes = lines.pushers(0)
    down, up = Pulls.down(pushes), Pulls.up(pushes)
    sources = [
        [source, *(parts.nats(sum(getattr(pushes[at], side) for at in places)) for side in _SUMS)]
        for source, places in rows_by_source([push.example for push in pushes]).items()
    ]
    by_source = [html.H3(f"By source{when}"), parts.table(("source", *HEAD[2:5]), sources, "snnn")]
    return by_source * bool(sources) + [
        part
        for title, pulls in ((f"Who pulled {what} down", down), (f"Who held {what} up", up))
        if pulls.half
        for part in (
            html.H3(f"{title}{when}"),
            html.P(half_of_a_fall(pulls), className="message") if pulls is down else None,
            parts.table(HEAD, _rows(study, pulls, state)[:most], "snnnnsss"),
        )
    ]


def answers_of(study: Study, pair: str) -> list[Any]:
    """The beginnings of a pair's answers."""
    row = study.pairs.get(pair)
    texts = [] if row is None else [("y⁺ ", row.chosen), ("y⁻ ", row.rejected or "")]
    return [html.Div([side, parts.said(excerpt(text, 60))]) for side, text in texts if text]


def _rows(study: Study, pulls: Pulls, state: State) -> list[list[Any]]:
    pushers = zip(pulls.pushers, pulls.shares.tolist(), strict=True)
    return [_pusher(study, push, share, state) for push, share in pushers]


def _pusher(study: Study, push: Pusher, share: float, state: State) -> list[Any]:
    return [
        parts.link(push.example, state.link(pair=push.example), title="its map on this answer"),
        percent(share),
        parts.nats(push.total),
        parts.nats(push.from_chosen),
        parts.nats(push.from_rejected),
        parts.listed(push.steps),
        answers_of(study, push.example),
        parts.link(
            "left out" if push.example in state.without else "leave out",
            state.toggled(push.example),
            title=f"{push.example}, out of the training or in it",
        ),
    ]


def concentration(lines: Lines, dark: bool) -> list[Any]:
    """The share of the pull down that the hardest pairs make; nothing where one pair pulled."""
    pulls = Pulls.down(lines.pushers(0))
    if len(pulls.pushers) < 2:
        return []
    plot = concentration_plot(pulls, PLOT_HEIGHT)
    return [html.H3("Few pairs or many"), parts.graph(plot, dark, "pairs")]


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
        of_side = lines.side == side
        nats = [float(lines.nats[of_side & (lines.step == step)].sum()) for step in steps]
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
