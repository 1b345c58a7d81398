"""The page of retrainings: what a ledger says that examples did, and what happens without them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dynolab.report.figure import Figure, add_diagonal, subplots
from dynolab.report.inputs.files import StageFacts
from dynolab.report.page import Page, Section, Tile, section, table, write_page
from dynolab.report.style import CHOSEN, HISTORY
from dynolab.report.text import number, plotly_text
from dynolab.results.counterfactual import Agreement, Dropped, Effect


def write_counterfactual_page(
    effects: Sequence[Effect],
    groups: Sequence[Dropped],
    agreement: Agreement,
    *,
    name: str,
    settings: str,
    stages: Sequence[StageFacts],
    folder: Path,
) -> None:
    """Writes the self-contained `counterfactual.html`, and its figure as a file in `figures/`."""
    lds = f"[{number(agreement.lds_low, 2)}, {number(agreement.lds_high, 2)}]"
    signs = f"[{number(agreement.same_sign_low, 2)}, {number(agreement.same_sign_high, 2)}]"
    page = Page(
        name=name,
        lead="Trainings without some examples, all else alike, beside what the ledger says that "
        "these examples did. The ledger is bookkeeping of one training; this shows how well it "
        "predicts others.",
        tiles=[
            Tile("LDS", number(agreement.lds, 2), f"{lds}, {agreement.groups} random groups"),
            Tile(
                "Blamed groups that answer as predicted",
                number(agreement.same_sign, 2),
                f"{signs}, {agreement.blamed} answers",
            ),
        ],
        content=[blamed_section(effects, groups, agreement), effects_figure(effects, groups)],
        settings=settings,
        stages=stages,
    )
    write_page(page, folder, "counterfactual.html")


def blamed_section(
    effects: Sequence[Effect], groups: Sequence[Dropped], agreement: Agreement
) -> Section:
    """Each single answer without the examples that the ledger blames for its fall."""
    known = {(effect.group, effect.functional): effect for effect in effects}
    rows = [
        (
            group.answer,
            ", ".join(group.examples),
            number(known[group.name, group.answer].predicted, sign=True),
            number(known[group.name, group.answer].measured, sign=True),
        )
        for group in groups
        if group.answer is not None
    ]
    holds = agreement.same_sign_low > 0.5
    verdict = "does" if holds else "does not reliably do"
    return section(
        "blamed",
        "Without those that the ledger blames",
        f"Dropping the examples that pulled an answer down hardest {verdict} what the ledger says: "
        f"{number(agreement.same_sign, 2)} of {agreement.blamed} answers moved as predicted.",
        table(("answer", "dropped", "predicted", "measured"), rows, "ssnn"),
        note="Nats. Predicted: minus the dropped examples’ lines. Measured: the answer after the "
        "training without them, less that after the whole training.",
    )


def effects_figure(effects: Sequence[Effect], groups: Sequence[Dropped]) -> Figure:
    """Predicted against measured effects, of random and of blamed groups."""
    blamed = {group.name for group in groups if group.answer is not None}
    plot = subplots(
        ["measured against predicted"], 480, x={"title_text": "predicted, nats"}, y_title="nats"
    )
    for label, color, own in (
        ("random groups", HISTORY, [e for e in effects if e.group not in blamed]),
        ("blamed groups", CHOSEN, [e for e in effects if e.group in blamed]),
    ):
        plot.add_scatter(
            x=[round(effect.predicted, 5) for effect in own],
            y=[round(effect.measured, 5) for effect in own],
            text=[plotly_text(f"{e.group} on {e.functional}") for e in own],
            mode="markers",
            name=label,
            marker={"color": color, "size": 5, "opacity": 0.6},
            hovertemplate="%{text}: predicted %{x:+.3g}, measured %{y:+.3g}<extra></extra>",
        )
    ends = [e.predicted for e in effects]
    add_diagonal(plot, (min(ends), max(ends)))
    return Figure(
        "effects",
        "What was predicted and what happened",
        f"{len(effects)} effects of {len(groups)} groups on every account.",
        "A dot: one group’s removal on one account. On the dashed line the retraining does what "
        "the ledger says.",
        plot,
    )
