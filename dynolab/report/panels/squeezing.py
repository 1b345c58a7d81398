"""Squeezing in a report: who took the probability that rose, what foretold it, who repeats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from dynolab.report.inputs.squeezing import Squeezing
from dynolab.report.page import Html, section, table
from dynolab.report.style import (
    BEST,
    CHOSEN,
    Plate,
    axis_key,
    axis_name,
    base_layout,
    columns,
    join,
    number,
    panel_title,
    plotly_text,
    points,
)
from dynolab.results.squeezing import Forecast, Generation, RisenMass
from dynolab.squeezing.index import chosen_by_step, own_share, squeeze_index
from dynolab.statistics import Interval, mean_interval, share_interval

_TAKERS: tuple[tuple[str, str, Callable[[Sequence[RisenMass]], Interval]], ...] = (
    ("y* of the start", BEST, squeeze_index),
    ("the answer’s own token", CHOSEN, own_share),
)
_SIDES = ("chosen", "rejected")


def squeezing_plate(found: Squeezing, titles: Mapping[str, str]) -> Plate | None:
    """Shares of the risen probability by step, training by training.

    **Arguments:** `titles`: how trainings are called on the page, by name.
    """
    shown = {
        name: steps
        for name, steps in chosen_by_step(found.risen).items()
        if squeeze_index(steps[max(steps)]).n
    }
    if not shown:
        return None
    figure, annotations = go.Figure(), []
    layout = base_layout(380, margin={"l": 64, "r": 24, "t": 84, "b": 52})
    for index, ((name, steps), domain) in enumerate(
        zip(shown.items(), columns(len(shown), 0.05), strict=True), start=1
    ):
        _add_shares(figure, steps, index)
        layout[axis_key("x", index)] = {
            "domain": domain,
            "anchor": axis_name("y", index),
            "title": {"text": "step"},
            "rangemode": "tozero",
        }
        layout[axis_key("y", index)] = {
            "anchor": axis_name("x", index),
            "range": [0, 1],
            "showticklabels": index == 1,
            "tickformat": ".0%",
        }
        annotations.append(panel_title(plotly_text(_called(name, titles)), domain[0], 1.02))
    layout["yaxis"]["title"] = {"text": "share of the risen probability"}
    layout["annotations"] = annotations
    layout["legend"] = {
        "orientation": "h",
        "x": 1,
        "xanchor": "right",
        "y": 1.12,
        "yanchor": "bottom",
    }
    figure.update_layout(**layout)
    return Plate(
        "squeezing",
        "Who took the probability that rose",
        _taken(shown, titles),
        "At every position of the teacher-forced chosen answers of training pairs, what rose since "
        "the training’s start is added up over the vocabulary: the squeezing index is the share "
        "that went to y*, the token that the model at the start found likeliest. Where that is the "
        "answer’s own token, both lines count it. Bars: 95% over pairs.",
        figure,
    )


def _add_shares(figure: go.Figure, steps: Mapping[int, Sequence[RisenMass]], index: int) -> None:
    """One panel: both takers' shares at every known step."""
    axes = {"xaxis": axis_name("x", index), "yaxis": axis_name("y", index)}
    known = sorted(steps)
    for label, color, share in _TAKERS:
        each = [share(steps[step]) for step in known]
        figure.add_scatter(
            x=known,
            y=[one.mean for one in each],
            mode="lines+markers",
            name=label,
            legendgroup=label,
            showlegend=index == 1,
            line={"color": color, "width": 2.5},
            error_y={
                "type": "data",
                "array": [one.high - one.mean for one in each],
                "thickness": 1.2,
                "width": 3,
            },
            hovertemplate="<b>%{fullData.name}</b><br>step %{x}: %{y:.1%}<extra></extra>",
            **axes,
        )


def _taken(
    shown: Mapping[str, Mapping[int, Sequence[RisenMass]]], titles: Mapping[str, str]
) -> str:
    parts = []
    for name, steps in shown.items():
        last = steps[max(steps)]
        parts.append(
            f"under {_called(name, titles)} y* took {_percent(squeeze_index(last))} and the "
            f"answers’ own tokens {_percent(own_share(last))}"
        )
    return f"Of the probability that rose on chosen answers, {join(parts)}."


def _percent(share: Interval) -> str:
    mean, _, ends = points(share, sign=False).partition(" ")
    return f"{mean}% {ends}"


def forecast_section(found: Sequence[Forecast], titles: Mapping[str, str]) -> Html:
    """The first-order rule against every recorded step, and the last layer's part of it."""
    name, title = "forecast", "Foretold token by token"
    if not found:
        return section(name, title, "No recorded step pushed an answer’s own tokens.")
    rows = [
        (
            _called(one.training, titles),
            one.step,
            one.side,
            number(100 * one.foretold / one.tokens),
            number(100 * one.rose / one.tokens),
            number(100 * one.right / one.tokens),
            number(one.auc),
            number(one.auc_top),
            number(one.auc_last_layer),
            number(one.explained),
            number(100 * one.agree),
        )
        for one in found
    ]
    head = (
        "training",
        "step",
        "answers",
        "foretold up, %",
        "rose, %",
        "right, %",
        "AUC",
        "AUC, top 20",
        "last layer: AUC",
        "R²",
        "sign, %",
    )
    return section(
        name,
        title,
        _foretold(found, titles),
        table(head, rows, "snsnnnnnnnn"),
        note="A push on token y of strength c is foretold to change log π of every token i ≠ y by "
        "c (Σ π² − π_y − π_i): a push down raises i exactly where π_i + π_y > Σ π². The rule sees "
        "one position alone; the step moves features, too, and every example pushes. AUC: how "
        "probably a token that rose was foretold more than one that fell; ½ is chance. Last layer: "
        "the forecast is what the head’s own change makes of all logits, features standing still; "
        "R² = 1 − Σ(Δ − Δ_head)²/Σ Δ² is what it explains of the change of the trained tokens "
        "themselves, below 0 where it misses by more than no change would; sign: the share of "
        "them on whose sign it is right. All on the answers of the "
        "step’s own batch.",
    )


def _foretold(found: Sequence[Forecast], titles: Mapping[str, str]) -> str:
    areas, explained = [], []
    for training in dict.fromkeys(one.training for one in found):
        own, called = [one for one in found if one.training == training], _called(training, titles)
        for side in _SIDES:
            known = [one.auc for one in own if one.side == side and math.isfinite(one.auc)]
            if known:
                ends = dict.fromkeys((number(min(known), 2), number(max(known), 2)))
                areas.append(f"{' to '.join(ends)} on {side} answers under {called}")
        share = mean_interval(np.array([one.explained for one in own])).mean
        explained.append(f"{number(100 * share, 2)}% under {called}")
    rule = f"The rule tells which tokens rise with an AUC of {join(areas)}. " if areas else ""
    return (
        f"{rule}Of what a step did to the tokens that it trained on, the last layer alone explains "
        f"{join(explained)}, on average over steps."
    )


def repeater_section(found: Sequence[Generation], titles: Mapping[str, str]) -> Html:
    """How much every model's answers repeat themselves."""
    name, title = "repeaters", "Who repeats themselves"
    models = list(dict.fromkeys(one.model for one in found))
    if not models:
        return section(name, title, "No answer was generated.")
    own = {model: [one for one in found if one.model == model] for model in models}
    shares = {
        model: share_interval(sum(one.repeater for one in each), len(each))
        for model, each in own.items()
    }
    rows = [
        (
            _called(model, titles),
            len(each),
            points(shares[model], sign=False),
            *(
                _mean(each, what)
                for what in (
                    "tokens",
                    "distinct_1",
                    "distinct_2",
                    "distinct_3",
                    "longest_repeat",
                    "entropy",
                )
            ),
            number(100 * sum(one.finished for one in each) / len(each)),
        )
        for model, each in own.items()
    ]
    told = [
        f"{_called(model, titles)} {sum(one.repeater for one in each)} of {len(each)}"
        for model, each in own.items()
    ]
    head = (
        "model",
        "answers",
        "repeaters, % [95%]",
        "tokens",
        "distinct-1",
        "distinct-2",
        "distinct-3",
        "longest repeat",
        "entropy, nats",
        "finished, %",
    )
    return section(
        name,
        title,
        f"Greedy answers that repeat themselves: {join(told)}.",
        table(head, rows, "snnnnnnnnn"),
        note="Means over answers. A repeater has a run of tokens that stands in it twice and is a "
        "third of it or more. Distinct-n: different n-grams over all n-grams of an answer; "
        "entropy: of its token frequencies.",
    )


def _mean(each: Sequence[Generation], what: str) -> str:
    return number(sum(getattr(one, what) for one in each) / len(each))


def _called(name: str, titles: Mapping[str, str]) -> str:
    return titles.get(name, f"“{name}”")
