"""Figures of pushes on a language model: what explains them, and which tokens rise."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from dynolab.report.figure import LEGEND_ABOVE, LEGEND_BELOW, Figure, base_layout, subplots
from dynolab.report.style import CHOSEN, INK, REJECTED, UP
from dynolab.report.text import true_minus
from dynolab.results.pushes import Answer, LeftOver, Picture, RankChange

PICTURE_NAMES: dict[Picture, str] = {
    "own_token": "one softmax, token by token",
    "last_layer": "last layer, features fixed",
    "first_order": "all weights, first order",
}
_LINES = {  # name, colour, dash of the measured line and of each approximation's
    "measured": ("measured", INK, "solid"),
    "own_token": (PICTURE_NAMES["own_token"], REJECTED, "dot"),
    "last_layer": (PICTURE_NAMES["last_layer"], CHOSEN, "dash"),
    "first_order": (PICTURE_NAMES["first_order"], UP, "dashdot"),
}
_ANSWERS: dict[Answer, str] = {
    "rejected": "the rejected answer, pushed down",
    "chosen": "the chosen answer, only watched",
}


def explained_figure(left: Sequence[LeftOver]) -> Figure:
    """`R² = 1 −` the share left over, by approximation and answer."""
    plot = go.Figure(
        layout=base_layout(
            380,
            barmode="group",
            bargap=0.4,
            yaxis={"title": {"text": "explained, R²"}, "tickformat": ".0%", "zeroline": True},
            legend=LEGEND_ABOVE,
        )
    )
    for answer, color in zip(_ANSWERS, (REJECTED, CHOSEN), strict=True):
        own = [row for row in left if row.answer == answer]
        plot.add_bar(
            x=[PICTURE_NAMES[row.picture] for row in own],
            y=[1 - row.left for row in own],
            name=_ANSWERS[answer],
            marker={"color": color, "line": {"width": 0}},
            error_y={
                "array": [row.high - row.left for row in own],
                "color": INK,
                "thickness": 1.4,
                "width": 5,
            },
            hovertemplate="%{x}: %{y:.1%}<extra>%{fullData.name}</extra>",
        )
    explained = [
        true_minus(f"{PICTURE_NAMES[row.picture]} {1 - row.left:.0%}")
        for row in left
        if row.answer == "rejected"
    ]
    pairs = max((row.pairs for row in left), default=0)
    return Figure(
        "explained",
        "How much of a language model’s squeezing each approximation explains",
        "Explained of what a push does at the rejected answer’s own positions: "
        f"{'; '.join(explained)}.",
        "R² = 1 − Σ(Δ − predicted)² / Σ Δ², Δ the measured change of log π of every token of the "
        f"vocabulary at every position; means over {pairs} pairs with jackknife 95% intervals. "
        "Below zero an approximation predicts worse than no change at all. One softmax: "
        "z′ = z − s‖h‖²(e_y − π), which ignores the answer’s other tokens. Last layer: "
        "the head moves, features are fixed (the unconstrained-features model).",
        plot,
    )


def rank_figure(ranks: Sequence[RankChange]) -> Figure:
    """Mean Δ log π by rank before the push: measured, and as each approximation predicts it."""
    answers = [answer for answer in _ANSWERS if any(row.answer == answer for row in ranks)]
    plot = subplots(
        [f"At {_ANSWERS[answer]}" for answer in answers],
        400,
        space=0.09,
        margin={"l": 64, "r": 24, "t": 56, "b": 56},
        legend=LEGEND_BELOW,
        x={
            "type": "category",
            "showgrid": False,
            "title_text": "rank before the push, among all other tokens",
        },
        y={"zeroline": True},
        y_title="Δ log π (nats)",
    )
    for col, answer in enumerate(answers, start=1):
        own = [row for row in ranks if row.answer == answer]
        for name, (label, color, dash) in _LINES.items():
            values = [getattr(row, name) for row in own]
            if any(value != value for value in values):
                continue
            plot.add_scatter(
                x=[*map(_rank, own)],
                y=values,
                mode="lines+markers",
                name=label,
                legendgroup=name,
                showlegend=answer == "rejected",
                line={
                    "color": color,
                    "dash": dash,
                    "width": 3 if name == "measured" else 2,
                },
                marker={"size": 6},
                hovertemplate="%{x}: %{y:+.3g} nats<extra>%{fullData.name}</extra>",
                row=1,
                col=col,
            )
    return Figure(
        "ranks",
        "Which tokens rise when an answer is pushed down",
        _rank_message(ranks),
        "Means over positions and pairs, each push from the same weights. y: the answer’s own "
        "token. A push on the softmax alone would raise the likeliest tokens and lower the rest.",
        plot,
    )


def _rank(row: RankChange) -> str:
    if row.first == 0:
        return "y"
    return str(row.first) if row.first == row.last else f"{row.first}–{row.last}"


def _rank_message(ranks: Sequence[RankChange]) -> str:
    own = [row for row in ranks if row.answer == "rejected"]
    label, best, last = (true_minus(f"{row.measured:+.2g}") for row in (own[0], own[1], own[-1]))
    return (
        f"At the rejected answer’s positions its own tokens move by {label} nats on average, the "
        f"likeliest other token by {best}, the least likely tokens by {last}."
    )
