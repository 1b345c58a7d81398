"""The page of retrainings without some examples: what was predicted, and what happened."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup
from scipy.stats import linregress

from dynolab.report.figure import LEGEND_ABOVE, Figure, add_diagonal, empty_plot, in_panel, subplots
from dynolab.report.inputs.study import StageFacts
from dynolab.report.page import Words, table, write_page
from dynolab.report.style import BEST, CHOSEN, HISTORY, number, plotly_text
from dynolab.statistics import Interval, mean_interval
from dynolab.training.config import DIFFERENTIATED
from experiments.counterfactual.results import IN_NATS, Agreement, Dropped, Effect, Repeat

TEMPLATE = Path(__file__).with_name("counterfactual.html")


def write_counterfactual_page(
    effects: Sequence[Effect],
    groups: Sequence[Dropped],
    agreements: Sequence[Agreement],
    repeats: Sequence[Repeat],
    removals: Mapping[str, Interval],
    *,
    name: str,
    settings: str,
    stages: Sequence[StageFacts],
    folder: Path,
) -> None:
    """Writes the self-contained `counterfactual.html`, and its figure as a file in `figures/`."""
    words = Words(
        TEMPLATE,
        agreement=agreements[0],
        effects=effects,
        groups=groups,
        removals=removals,
        has_metagradient=any(row.estimate == "metagradient" for row in agreements),
        optimizers=list(DIFFERENTIATED),
    )
    head = ("estimate", "LDS [95 %]", "of another order’s", "error", "same sign [95 %]", "answers")
    rows = [
        (
            row.estimate,
            _with_ends(row.lds, row.lds_low, row.lds_high),
            _percent(row.of_ceiling),
            "–" if row.error is None else number(row.error, 2),
            _with_ends(row.same_sign, row.same_sign_low, row.same_sign_high),
            row.blamed or "–",
        )
        for row in agreements
    ]
    compared = [
        (name, f"{number(interval.mean, sign=True)} {_ends(interval.low, interval.high)}")
        for name, interval in removals.items()
    ]
    page = words.page(
        name,
        content=[
            forecast_figure(effects, groups),
            words.section("estimates", table(head, rows, "snnnnn", cards=True)),
            words.section("removals", table(("pairs left out", "nats [95 %]"), compared, "sn")),
            words.section("blamed", blamed_table(effects, groups, repeats)),
            effects_figure(effects, groups, words),
        ],
        settings=settings,
        stages=stages,
    )
    write_page(page, folder, "counterfactual.html")


def _ends(low: float, high: float) -> str:
    return f"[{number(low, 2)}, {number(high, 2)}]"


def _with_ends(value: float | None, low: float | None, high: float | None) -> str:
    if value is None or low is None or high is None:
        return "–"
    return f"{number(value, 2)} {_ends(low, high)}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def blamed_table(
    effects: Sequence[Effect], groups: Sequence[Dropped], repeats: Sequence[Repeat]
) -> Markup:
    """Each single answer without the examples that the ledger blames for its fall."""
    by_effect = {(row.group, row.functional, row.estimate): row for row in effects}
    measured = {(row.group, row.functional): row.measured for row in effects}
    of_blamed = {
        row.estimate for row in effects if row.group in {g.name for g in groups if g.blamed}
    }
    estimates = [
        name
        for name in dict.fromkeys(row.estimate for row in effects)
        if name in IN_NATS and name in of_blamed
    ]
    random_groups = [group.name for group in groups if group.answer is None]
    by_words = {
        group.answer: group.name for group in groups if group.blamed_by == "words" and group.answer
    }
    rows = []
    for group in groups:
        if group.blamed and group.answer is not None:
            answer = group.answer
            of_group = [by_effect[group.name, answer, estimate] for estimate in estimates]
            seeds = mean_interval([row.measured for row in repeats if row.group == group.name])
            controls = [measured[name, answer] for name in random_groups]
            rows.append(
                (
                    answer,
                    ", ".join(group.examples),
                    *(number(row.predicted, sign=True) for row in of_group),
                    number(measured[group.name, answer], sign=True),
                    f"{number(seeds.mean, sign=True)} {_ends(seeds.low, seeds.high)}",
                    number(float(np.mean(controls)), sign=True) if controls else "–",
                    number(measured[by_words[answer], answer], sign=True),
                )
            )
    head = (
        "answer",
        "dropped",
        *estimates,
        "measured",
        "over seeds [95 %]",
        "random pairs",
        "pairs by words",
    )
    return table(head, rows, "ss" + "n" * (len(head) - 2), cards=True)


KINDS_OF_SETS = {
    "ledger": ("pairs that the ledger blames", CHOSEN, "circle"),
    "words": ("pairs by words", BEST, "diamond"),
    "random": ("random pairs", HISTORY, "circle-open"),
}


def forecast_figure(effects: Sequence[Effect], groups: Sequence[Dropped]) -> Figure:
    """A dot for each set that was left out: what the ledger forecast, and what training showed.

    A set that is blamed for an answer's fall stands for this answer, a random one for the mean of
    these answers. Where none was blamed, the axes are empty.
    """
    by_names = {(row.group, row.functional): row for row in effects if row.estimate == "ledger"}
    answers = list(dict.fromkeys(group.answer for group in groups if group.answer is not None))
    changes = {}
    for group in groups if answers else ():
        of_set = [by_names[group.name, name] for name in answers if group.answer in (name, None)]
        pairs_of_nats = [(effect.predicted, effect.measured) for effect in of_set]
        changes[group] = np.mean(pairs_of_nats, axis=0).round(5).tolist()
    plot = empty_plot(460, legend=LEGEND_ABOVE)
    plot.update_xaxes(title_text="forecast by the ledger, nats")
    plot.update_yaxes(title_text="trained, nats")
    for kind, (label, color, symbol) in KINDS_OF_SETS.items():
        sets = [
            group for group in changes if kind == (group.blamed_by if group.answer else "random")
        ]
        plot.add_scatter(
            x=[changes[group][0] for group in sets],
            y=[changes[group][1] for group in sets],
            text=[plotly_text(f"{group.name} on {group.answer or 'their mean'}") for group in sets],
            mode="markers",
            name=label,
            marker={"color": color, "symbol": symbol, "size": 9},
            hovertemplate="%{text}: forecast %{x:+.3g}, trained %{y:+.3g}<extra></extra>",
        )
    forecast, trained = np.array(list(changes.values())).reshape(-1, 2).T
    r = slope = math.nan
    if changes:
        add_diagonal(plot, (forecast.min(), forecast.max()))
    if len(changes) > 2 and np.ptp(forecast) > 0:
        line = linregress(forecast, trained)
        r, slope = line.rvalue, line.slope
    return Words(TEMPLATE, sets=len(changes), r=r, slope=slope).figure("forecast", plot)


def effects_figure(effects: Sequence[Effect], groups: Sequence[Dropped], words: Words) -> Figure:
    """Predicted against measured effects, of random and of blamed groups."""
    blamed = {group.name for group in groups if group.answer is not None}
    estimates = [e for e in dict.fromkeys(row.estimate for row in effects) if e in IN_NATS]
    titles = [f"measured against {estimate}" for estimate in estimates]
    plot = subplots(titles, 480, x={"title_text": "predicted, nats"}, y_title="nats")
    for column, estimate in enumerate(estimates, start=1):
        of_estimate = [row for row in effects if row.estimate == estimate]
        for label, color, of_blamed in (
            ("random groups", HISTORY, False),
            ("blamed groups", CHOSEN, True),
        ):
            of_label = [row for row in of_estimate if (row.group in blamed) == of_blamed]
            plot.add_scatter(
                x=[round(effect.predicted, 5) for effect in of_label],
                y=[round(effect.measured, 5) for effect in of_label],
                text=[plotly_text(f"{e.group} on {e.functional}") for e in of_label],
                mode="markers",
                **in_panel(column, label),
                marker={"color": color, "size": 5, "opacity": 0.6},
                hovertemplate="%{text}: predicted %{x:+.3g}, measured %{y:+.3g}<extra></extra>",
            )
        ends = [effect.predicted for effect in of_estimate]
        add_diagonal(plot, (min(ends), max(ends)), row=1, col=column)
    return words.figure("effects", plot)
