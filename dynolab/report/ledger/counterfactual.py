"""The page of retrainings: what examples are said to have done, and what happens without them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dynolab.report.figure import Figure, add_diagonal, subplots
from dynolab.report.inputs.files import StageFacts
from dynolab.report.page import Page, Section, Tile, section, table, write_page
from dynolab.report.style import CHOSEN, HISTORY
from dynolab.report.text import number, plotly_text
from dynolab.results.counterfactual import Agreement, Dropped, Effect, Repeat
from dynolab.statistics import mean_interval
from dynolab.training.config import DIFFERENTIATED


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
    page = Page(
        name=name,
        lead="Trainings without some examples, all else alike, beside what was predicted of them. "
        "The ledger is bookkeeping of one training; this shows how well it predicts others.",
        tiles=[
            tile
            for each in agreements
            for tile in (
                Tile(
                    f"LDS of the {each.estimate}",
                    number(each.lds, 2),
                    f"{interval(each.lds_low, each.lds_high)}, {each.groups} random groups",
                ),
                Tile(
                    f"Blamed groups that answer as the {each.estimate} says",
                    f"{percent(each.same_sign)} %",
                    f"[{percent(each.same_sign_low)}, {percent(each.same_sign_high)}], "
                    f"{each.blamed} answers under {each.seeds} seeds",
                ),
            )
        ],
        content=[
            blamed_section(effects, groups, agreements[0], repeats),
            estimates_section(agreements),
            effects_figure(effects, groups),
        ],
        settings=settings,
        stages=stages,
    )
    write_page(page, folder, "counterfactual.html")


def percent(share: float) -> str:
    """A share of answers; a dash where there are none."""
    return f"{100 * share:.0f}" if np.isfinite(share) else "–"


def interval(low: float, high: float) -> str:
    """A 95 % interval."""
    return f"[{number(low, 2)}, {number(high, 2)}]"


def estimates_section(agreements: Sequence[Agreement]) -> Section:
    """How well each estimate predicts."""
    rows = [
        (
            each.estimate,
            number(each.lds, 2),
            interval(each.lds_low, each.lds_high),
            number(each.error, 2),
            number(each.same_sign, 2),
            interval(each.same_sign_low, each.same_sign_high),
        )
        for each in agreements
    ]
    lacking = {each.estimate for each in agreements} == {"ledger"}
    return section(
        "estimates",
        "How well each predicts",
        "LDS over the random groups: "
        + ", ".join(
            f"{each.estimate} {number(each.lds, 2)} {interval(each.lds_low, each.lds_high)}"
            for each in agreements
        )
        + ".",
        table(("estimate", "LDS", "95 %", "error", "same sign", "95 %"), rows, "snnnnn"),
        note="Ledger: minus the dropped examples’ lines, what they did on the way of the training "
        "that was made. Metagradient (MAGIC, arXiv 2504.16430): minus the derivative of the "
        "training’s end by their weights, through all later steps. LDS: rank correlation over "
        "random groups, mean over accounts. "
        "Error: ‖predicted − measured‖ / ‖measured‖ over the same. Same sign: of the blamed groups."
        + (
            " There is no metagradient: it was not asked for, or the optimizer is none of "
            f"{', '.join(DIFFERENTIATED)}, through which it goes."
            if lacking
            else ""
        ),
    )


def blamed_section(
    effects: Sequence[Effect],
    groups: Sequence[Dropped],
    agreement: Agreement,
    repeats: Sequence[Repeat],
) -> Section:
    """Each single answer without the examples that the ledger blames for its fall."""
    known = {(each.group, each.functional, each.estimate): each for each in effects}
    estimates = list(dict.fromkeys(each.estimate for each in effects))
    rows = []
    for group in groups:
        if group.answer is None:
            continue
        own = [known[group.name, group.answer, estimate] for estimate in estimates]
        numbers = [*(each.predicted for each in own), own[0].measured]
        examples = ", ".join(group.examples)
        seeds = mean_interval(
            np.array([each.measured for each in repeats if each.group == group.name])
        )
        rows.append(
            (
                group.answer,
                examples,
                *(number(nats, sign=True) for nats in numbers),
                f"{number(seeds.mean, sign=True)} {interval(seeds.low, seeds.high)}",
            )
        )
    holds = agreement.same_sign_low > 0.5
    verdict = "does" if holds else "does not reliably do"
    return section(
        "blamed",
        "Without those that the ledger blames",
        f"Dropping the examples that pulled an answer down hardest {verdict} what the ledger says: "
        f"under {agreement.seeds} training seeds, {percent(agreement.same_sign)} % "
        f"[{percent(agreement.same_sign_low)}, {percent(agreement.same_sign_high)}] of "
        f"{agreement.blamed} answers moved as predicted.",
        table(
            ("answer", "dropped", *estimates, "measured", "over seeds"),
            rows,
            "ss" + "n" * (len(estimates) + 2),
        ),
        note="Nats. Measured: the answer after the training without the dropped examples, less "
        "that after the whole training; before it, what each estimate predicts. Over seeds: the "
        "mean over trainings with other orders of the examples, with a 95 % interval.",
    )


def effects_figure(effects: Sequence[Effect], groups: Sequence[Dropped]) -> Figure:
    """Predicted against measured effects, of random and of blamed groups."""
    blamed = {group.name for group in groups if group.answer is not None}
    estimates = list(dict.fromkeys(each.estimate for each in effects))
    plot = subplots(
        [f"measured against the {estimate}’s" for estimate in estimates],
        480,
        x={"title_text": "predicted, nats"},
        y_title="nats",
    )
    for column, estimate in enumerate(estimates, start=1):
        of_estimate = [each for each in effects if each.estimate == estimate]
        for label, color, of_blamed in (
            ("random groups", HISTORY, False),
            ("blamed groups", CHOSEN, True),
        ):
            own = [each for each in of_estimate if (each.group in blamed) == of_blamed]
            plot.add_scatter(
                x=[round(effect.predicted, 5) for effect in own],
                y=[round(effect.measured, 5) for effect in own],
                text=[plotly_text(f"{e.group} on {e.functional}") for e in own],
                mode="markers",
                name=label,
                legendgroup=label,
                showlegend=column == 1,
                marker={"color": color, "size": 5, "opacity": 0.6},
                hovertemplate="%{text}: predicted %{x:+.3g}, measured %{y:+.3g}<extra></extra>",
                row=1,
                col=column,
            )
        ends = [effect.predicted for effect in of_estimate]
        add_diagonal(plot, (min(ends), max(ends)), row=1, col=column)
    return Figure(
        "effects",
        "What was predicted and what happened",
        f"{len(effects) // len(estimates)} effects of {len(groups)} groups on every account.",
        "A dot: one group’s removal on one account. On the dashed line the retraining does what "
        "was predicted.",
        plot,
    )
