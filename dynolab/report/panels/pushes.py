"""The figures of pushes on a language model: which picture explains them, and who rises."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from dynolab.report.style import (
    CHOSEN,
    INK,
    REJECTED,
    UP,
    Plate,
    axis_key,
    axis_name,
    base_layout,
    columns,
    panel_title,
)
from dynolab.results.pushes import Answer, LeftOver, Picture, RankChange

PICTURE_NAMES: dict[Picture, str] = {
    "own_token": "one softmax, token by token",
    "last_layer": "last layer, features still",
    "first_order": "all weights, first order",
}
_COLORS: dict[str, str] = {
    "measured": INK,
    "own_token": REJECTED,
    "last_layer": CHOSEN,
    "first_order": UP,
}
_DASHES = {"measured": "solid", "own_token": "dot", "last_layer": "dash", "first_order": "dashdot"}
_ANSWERS: dict[Answer, str] = {
    "rejected": "the rejected answer, pushed down",
    "chosen": "the chosen answer, only watched",
}


def explained_plate(left: Sequence[LeftOver]) -> Plate:
    """`R² = 1 −` the share left over, by picture and answer."""
    figure = go.Figure()
    for answer, color in zip(_ANSWERS, (REJECTED, CHOSEN), strict=True):
        own = [one for one in left if one.answer == answer]
        figure.add_bar(
            x=[PICTURE_NAMES[one.picture] for one in own],
            y=[1 - one.left for one in own],
            name=_ANSWERS[answer],
            marker={"color": color, "line": {"width": 0}},
            error_y={
                "array": [one.high - one.left for one in own],
                "color": INK,
                "thickness": 1.4,
                "width": 5,
            },
            hovertemplate="%{x}: %{y:.1%}<extra>%{fullData.name}</extra>",
        )
    figure.update_layout(
        **base_layout(
            380,
            barmode="group",
            bargap=0.4,
            yaxis={"title": {"text": "explained, R²"}, "tickformat": ".0%", "zeroline": True},
            legend={
                "orientation": "h",
                "x": 0.82,
                "xanchor": "right",
                "y": 1.02,
                "yanchor": "bottom",
            },
        )
    )
    said = [
        f"{PICTURE_NAMES[one.picture]} {1 - one.left:.0%}".replace("-", "−")
        for one in left
        if one.answer == "rejected"
    ]
    pairs = max((one.pairs for one in left), default=0)
    return Plate(
        "explained",
        "How much of a language model’s squeezing each picture explains",
        f"Of what a push does to the rejected answer’s own positions: {'; '.join(said)}.",
        "R² = 1 − Σ(Δ − foretold)² / Σ Δ², Δ the measured change of log π of every token of the "
        f"vocabulary at every position; means over {pairs} pairs with jackknife 95% intervals. "
        "Below zero a picture foretells worse than no change at all. One softmax by itself: "
        "z′ = z − s‖h‖²(e_y − π), which knows nothing of the answer’s other tokens. Last layer: "
        "the head moves, features stand still (the unconstrained-features picture).",
        figure,
    )


def rank_plate(ranks: Sequence[RankChange]) -> Plate:
    """Mean Δ log π by rank before the push: measured, and as each picture foretells it."""
    figure = go.Figure()
    answers = [answer for answer in _ANSWERS if any(one.answer == answer for one in ranks)]
    layout = base_layout(400, margin={"l": 64, "r": 24, "t": 56, "b": 56})
    annotations = []
    for index, (answer, domain) in enumerate(
        zip(answers, columns(len(answers), 0.09), strict=True), start=1
    ):
        own = [one for one in ranks if one.answer == answer]
        axes = {"xaxis": axis_name("x", index), "yaxis": axis_name("y", index)}
        for name, color in _COLORS.items():
            values = [getattr(one, name) for one in own]
            if any(value != value for value in values):
                continue
            label = "measured" if name == "measured" else PICTURE_NAMES[name]  # type: ignore[index]
            figure.add_scatter(
                x=[_ranks(one) for one in own],
                y=values,
                mode="lines+markers",
                name=label,
                legendgroup=name,
                showlegend=answer == "rejected",
                line={
                    "color": color,
                    "dash": _DASHES[name],
                    "width": 3 if name == "measured" else 2,
                },
                marker={"size": 6},
                hovertemplate="%{x}: %{y:+.3g} nats<extra>%{fullData.name}</extra>",
                **axes,
            )
        layout[axis_key("x", index)] = {
            "domain": domain,
            "anchor": axes["yaxis"],
            "type": "category",
            "showgrid": False,
            "title": {"text": "rank before the push, among all other tokens"},
        }
        layout[axis_key("y", index)] = {
            "anchor": axes["xaxis"],
            "zeroline": True,
            "title": {"text": "Δ log π (nats)" if index == 1 else ""},
        }
        annotations.append(panel_title(f"At {_ANSWERS[answer]}", domain[0], 1.02))
    layout["annotations"] = annotations
    layout["legend"] = {
        "orientation": "h",
        "x": 1,
        "xanchor": "right",
        "y": -0.22,
        "yanchor": "top",
    }
    figure.update_layout(**layout)
    return Plate(
        "ranks",
        "Who rises when an answer is pushed down",
        _rank_message(ranks),
        "Means over positions and pairs, each push from the same weights. y: the answer’s own "
        "token. A push of the softmax alone would raise the likeliest tokens and lower the rest.",
        figure,
    )


def _ranks(one: RankChange) -> str:
    if one.first == 0:
        return "y"
    return str(one.first) if one.first == one.last else f"{one.first}–{one.last}"


def _rank_message(ranks: Sequence[RankChange]) -> str:
    own = [one for one in ranks if one.answer == "rejected"]
    label, best, last = own[0].measured, own[1].measured, own[-1].measured
    told = [f"{value:+.2g}".replace("-", "−") for value in (label, best, last)]
    return (
        f"At the rejected answer’s positions its own tokens move by {told[0]} nats on average, the "
        f"likeliest other token by {told[1]}, the least likely tokens by {told[2]}."
    )
