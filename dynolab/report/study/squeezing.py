"""Squeezing in a report: where the probability that rose went, its forecasts, repeated answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from dynolab.report.figure import LEGEND_OVER_TITLES, Figure, error_bars, subplots
from dynolab.report.inputs.study import Squeezing
from dynolab.report.page import Section, section, table
from dynolab.report.style import BEST, CHOSEN
from dynolab.report.text import join, number, plotly_text, points
from dynolab.results.squeezing import Forecast, Generation, RisenMass
from dynolab.squeezing.index import chosen_by_step, own_share, squeeze_index
from dynolab.statistics import Interval, mean_interval, share_interval

_TAKERS: tuple[tuple[str, str, Callable[[Sequence[RisenMass]], Interval]], ...] = (
    ("y* at the start", BEST, squeeze_index),
    ("the answer’s own token", CHOSEN, own_share),
)
_SIDES = ("chosen", "rejected")
_MEASURED = ("tokens", "distinct_1", "distinct_2", "distinct_3", "longest_repeat", "entropy")


def squeezing_figure(squeezing: Squeezing, titles: Mapping[str, str]) -> Figure | None:
    """Shares of the risen probability by step, training by training.

    **Arguments:** `titles`: the trainings' names on the page, by name.
    """
    shown = {
        name: steps
        for name, steps in chosen_by_step(squeezing.risen).items()
        if squeeze_index(steps[max(steps)]).n
    }
    if not shown:
        return None
    plot = subplots(
        [plotly_text(_title(name, titles)) for name in shown],
        380,
        space=0.05,
        shared_y=True,
        margin={"l": 64, "r": 24, "t": 84, "b": 52},
        legend=LEGEND_OVER_TITLES | {"x": 1},
        x={"title_text": "step", "rangemode": "tozero"},
        y={"range": [0, 1], "tickformat": ".0%"},
        y_title="share of the risen probability",
    )
    for col, steps in enumerate(shown.values(), start=1):
        _add_shares(plot, steps, col)
    return Figure(
        "squeezing",
        "Where the probability that rose went",
        _squeezing_message(shown, titles),
        "At every position of the teacher-forced chosen answers of training pairs, the "
        "probability that rose since the training’s start is summed over the vocabulary: the "
        "squeezing index is the share that went to y*, the likeliest token of the model at the "
        "start. If that is the answer’s own token, both lines count it. Bars: 95% over pairs.",
        plot,
    )


def _add_shares(plot: go.Figure, steps: Mapping[int, Sequence[RisenMass]], col: int) -> None:
    """One panel: both takers' shares at every known step."""
    known = sorted(steps)
    for label, color, share in _TAKERS:
        shares = [share(steps[step]) for step in known]
        plot.add_scatter(
            x=known,
            y=[taken.mean for taken in shares],
            mode="lines+markers",
            name=label,
            legendgroup=label,
            showlegend=col == 1,
            line={"color": color, "width": 2.5},
            error_y=error_bars(shares, color, thickness=1.2, width=3),
            hovertemplate="<b>%{fullData.name}</b><br>step %{x}: %{y:.1%}<extra></extra>",
            row=1,
            col=col,
        )


def _squeezing_message(
    shown: Mapping[str, Mapping[int, Sequence[RisenMass]]], titles: Mapping[str, str]
) -> str:
    parts = []
    for name, steps in shown.items():
        last = steps[max(steps)]
        parts.append(
            f"under {_title(name, titles)} y* took {_percent(squeeze_index(last))} and the "
            f"answers’ own tokens {_percent(own_share(last))}"
        )
    return f"Of the probability that rose on chosen answers, {join(parts)}."


def _percent(share: Interval) -> str:
    mean, _, ends = points(share, sign=False).partition(" ")
    return f"{mean}% {ends}"


def forecast_section(forecasts: Sequence[Forecast], titles: Mapping[str, str]) -> Section:
    """The first-order rule against every recorded step, and the last layer's part of it."""
    name, title = "forecast", "Predicted token by token"
    if not forecasts:
        return section(name, title, "No recorded step pushed an answer’s own tokens.")
    rows = [
        (
            _title(row.training, titles),
            row.step,
            row.side,
            *(number(100 * count / row.tokens) for count in (row.foretold, row.rose, row.right)),
            *map(number, (row.auc, row.auc_top, row.auc_last_layer, row.explained)),
            number(100 * row.agree),
        )
        for row in forecasts
    ]
    return section(
        name,
        title,
        _forecast_message(forecasts, titles),
        table(
            (
                "training",
                "step",
                "answers",
                "predicted to rise, %",
                "rose, %",
                "right, %",
                "AUC",
                "AUC, top 20",
                "last layer: AUC",
                "R²",
                "sign, %",
            ),
            rows,
            "snsnnnnnnnn",
        ),
        note="A push of strength c on token y is predicted to change log π of every token i ≠ y by "
        "c (Σ π² − π_y − π_i): a push down raises i exactly if π_i + π_y > Σ π². The rule "
        "considers one position alone; the step also moves features, and every example pushes. "
        "AUC: the probability that a token that rose had a higher forecast than one that fell; ½ "
        "is chance. Last layer: the forecast is the effect of the head’s own change on all "
        "logits, with fixed features; R² = 1 − Σ(Δ − Δ_head)²/Σ Δ² is what it explains of the "
        "change of the trained tokens themselves, below 0 if it is worse than predicting no "
        "change; sign: the share of them whose sign it gets right. All on the answers of the "
        "step’s own batch.",
    )


def _forecast_message(forecasts: Sequence[Forecast], titles: Mapping[str, str]) -> str:
    areas, explained = [], []
    for training in dict.fromkeys(row.training for row in forecasts):
        own = [row for row in forecasts if row.training == training]
        title = _title(training, titles)
        for side in _SIDES:
            known = [row.auc for row in own if row.side == side and math.isfinite(row.auc)]
            if known:
                ends = dict.fromkeys((number(min(known), 2), number(max(known), 2)))
                areas.append(f"{' to '.join(ends)} on {side} answers under {title}")
        share = mean_interval(np.array([row.explained for row in own])).mean
        explained.append(f"{number(100 * share, 2)}% under {title}")
    rule = f"The rule predicts which tokens rise with an AUC of {join(areas)}. " if areas else ""
    return (
        f"{rule}Of a step’s effect on the tokens that it trained on, the last layer alone explains "
        f"{join(explained)}, on average over steps."
    )


def repeater_section(generations: Sequence[Generation], titles: Mapping[str, str]) -> Section:
    """How much every model's answers repeat themselves."""
    name, title = "repeaters", "Who repeats themselves"
    by_model: dict[str, list[Generation]] = {}
    for row in generations:
        by_model.setdefault(row.model, []).append(row)
    if not by_model:
        return section(name, title, "No answer was generated.")
    repeaters = {model: sum(row.repeater for row in own) for model, own in by_model.items()}
    rows = [
        (
            _title(model, titles),
            len(own),
            points(share_interval(repeaters[model], len(own)), sign=False),
            *(_mean(own, measured) for measured in _MEASURED),
            number(100 * sum(row.finished for row in own) / len(own)),
        )
        for model, own in by_model.items()
    ]
    counts = [
        f"{_title(model, titles)} {repeaters[model]} of {len(own)}"
        for model, own in by_model.items()
    ]
    return section(
        name,
        title,
        f"Greedy answers that repeat themselves: {join(counts)}.",
        table(
            (
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
            ),
            rows,
            "snnnnnnnnn",
        ),
        note="Means over answers. A repeater contains a run of tokens twice that is a third of it "
        "or more. Distinct-n: share of different n-grams among all n-grams of an answer; "
        "entropy: of its token frequencies.",
    )


def _mean(generations: Sequence[Generation], measured: str) -> str:
    return number(sum(getattr(row, measured) for row in generations) / len(generations))


def _title(name: str, titles: Mapping[str, str]) -> str:
    return titles.get(name, f"“{name}”")
