"""The page of retrainings without some examples: what was predicted, and what happened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from dynolab.report.figure import Figure, add_diagonal, in_panel, subplots
from dynolab.report.inputs.study import StageFacts
from dynolab.report.page import Words, table, write_page
from dynolab.report.style import CHOSEN, HISTORY, number, plotly_text
from dynolab.statistics import mean_interval
from dynolab.training.config import DIFFERENTIATED
from experiments.counterfactual.results import Agreement, Dropped, Effect, Repeat

TEMPLATE = Path(__file__).with_name("counterfactual.html")


def write_counterfactual_page(
    effects: Sequence[Effect],
    groups: Sequence[Dropped],
    agreements: Sequence[Agreement],
    repeats: Sequence[Repeat],
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
        without={row.estimate for row in agreements} == {"ledger"},
        optimizers=list(DIFFERENTIATED),
    )
    head = ("estimate", "LDS [95 %]", "error", "same sign [95 %]", "answers", "seeds")
    rows = [
        (
            row.estimate,
            f"{number(row.lds, 2)} {_ends(row.lds_low, row.lds_high)}",
            number(row.error, 2),
            f"{number(row.same_sign, 2)} {_ends(row.same_sign_low, row.same_sign_high)}",
            row.blamed,
            row.seeds,
        )
        for row in agreements
    ]
    page = words.page(
        name,
        content=[
            words.section("estimates", table(head, rows, "snnnnn")),
            words.section("blamed", blamed_table(effects, groups, repeats)),
            effects_figure(effects, groups, words),
        ],
        settings=settings,
        stages=stages,
    )
    write_page(page, folder, "counterfactual.html")


def _ends(low: float, high: float) -> str:
    return f"[{number(low, 2)}, {number(high, 2)}]"


def blamed_table(
    effects: Sequence[Effect], groups: Sequence[Dropped], repeats: Sequence[Repeat]
) -> Markup:
    """Each single answer without the examples that the ledger blames for its fall."""
    by_effect = {(row.group, row.functional, row.estimate): row for row in effects}
    estimates = list(dict.fromkeys(row.estimate for row in effects))
    rows = []
    for group in groups:
        if group.answer is not None:
            of_group = [by_effect[group.name, group.answer, estimate] for estimate in estimates]
            measured = [row.measured for row in repeats if row.group == group.name]
            seeds = mean_interval(measured)
            rows.append(
                (
                    group.answer,
                    ", ".join(group.examples),
                    *(number(row.predicted, sign=True) for row in of_group),
                    number(of_group[0].measured, sign=True),
                    f"{number(seeds.mean, sign=True)} {_ends(seeds.low, seeds.high)}",
                )
            )
    head = ("answer", "dropped", *estimates, "measured", "over seeds [95 %]")
    return table(head, rows, "ss" + "n" * (len(head) - 2))


def effects_figure(effects: Sequence[Effect], groups: Sequence[Dropped], words: Words) -> Figure:
    """Predicted against measured effects, of random and of blamed groups."""
    blamed = {group.name for group in groups if group.answer is not None}
    estimates = list(dict.fromkeys(row.estimate for row in effects))
    titles = [f"measured against the {estimate}’s prediction" for estimate in estimates]
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
