"""The page of an audit: what preference pairs would do, and what training then did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go

from dynolab.audit.foresight import Ranking, worst_first
from dynolab.data.rows import Split, rows_by_source
from dynolab.report.figure import LEGEND_OVER_TITLES, Figure, add_diagonal, base_layout, subplots
from dynolab.report.inputs.study import Audit, AuditPageInputs
from dynolab.report.page import Section, Words, table, write_page
from dynolab.report.style import (
    CHOSEN,
    DOWN,
    HISTORY,
    PAPER,
    SPLITS,
    UP,
    ZERO,
    excerpt,
    number,
    plotly_text,
    with_interval,
)
from dynolab.results.audit import Foresight
from dynolab.statistics import Interval

LABELS: dict[Ranking, tuple[str, str]] = {
    "from_all": ("force of all pairs on it", "a step on all training pairs lowers the answer"),
    "on_all": ("pair’s force on all", "a step on the pair lowers all chosen answers"),
    "force": ("pair’s force on its own", "a step on the pair lowers its own chosen answer"),
    "push_down": ("pair’s push-down alone", "its rejected tokens lower its own chosen answer"),
    "ches": ("CHES", "both answers look alike to the last layer"),
    "ches_per_token": ("CHES per token", "the same, with means over tokens"),
    "likelihood_gap": ("likelihood gap", "the rejected answer is far less likely"),
    "edit_distance": ("edit distance", "the answers share many tokens"),
}
"""What each ranking is called, and where it sees a risk."""

WORST = 10
FOREIGN = -4.0
"""Nats a token, a perplexity of 55, below which a model's answers were hardly its own."""

_DRAWN: tuple[Ranking, ...] = ("from_all", "force", "ches")
_COLORS: dict[Split, str] = {"train": DOWN, "heldout": HISTORY}


def write_audit_page(inputs: AuditPageInputs, folder: Path) -> None:
    """Writes the self-contained `audit.html`, and every figure as a file in `figures/`."""
    audit = inputs.audit
    rows = [row for row in audit.rows if row.split == "train"]
    token = sum(row.chosen_logp for row in rows) / sum(row.chosen_tokens for row in rows)
    words = Words(
        "audit.html",
        inputs=inputs,
        pairs=len(rows),
        heldout=len(audit.rows) - len(rows),
        own=sum(row.force < 0 for row in rows),
        lowered=sum(row.from_all < 0 for row in rows),
        harmful=[row.pair_id for row in worst_first(rows, "on_all") if row.on_all < 0],
        token=token if token < FOREIGN else None,
    )
    page = words.page(
        inputs.name,
        content=[
            worst_section(audit, "on_all", words),
            sources_section(audit, words),
            worst_section(audit, "from_all", words),
            pull_figure(audit, words),
            foresight_section(audit.foresight) if audit.foresight else None,
            foreseen_figure(audit),
            worst_section(audit, "force", words),
        ],
        settings=inputs.settings,
        stages=inputs.stages,
    )
    write_page(page, folder, "audit.html")


def worst_section(audit: Audit, ranking: Ranking, words: Words) -> Section:
    """The pairs that a ranking puts first, with their texts."""
    own = [row for row in audit.rows if row.split == "train"]
    moved = {(change.split, change.pair_id): change.change for change in audit.changes}
    rows = [
        (
            row.pair_id,
            excerpt(pair.prompt, 90, end=True),
            excerpt(pair.chosen, 90),
            excerpt(pair.rejected or "", 90),
            *(
                number(value, sign=True)
                for value in (row.pull_up, row.push_down, row.from_all, row.on_all)
            ),
            number(row.ches),
            number(moved.get((row.split, row.pair_id)), sign=True),
        )
        for row in worst_first(own, ranking)[:WORST]
        for pair in (audit.texts[row.split, row.pair_id],)
    ]
    numbers = ("pull up", "push down", "from all", "on all", "CHES", "Δ by training")
    head = ("pair", "prompt", "chosen y⁺", "rejected y⁻", *numbers)
    return words.section(f"worst-{ranking}", table(head, rows, "ssss" + "n" * len(numbers)))


def sources_section(audit: Audit, words: Words) -> Section | None:
    """What a step on a source's pairs does to all chosen answers; None for a single source."""
    own = [row for row in audit.rows if row.split == "train"]
    sources = rows_by_source([row.pair_id for row in own])
    rows = [
        (
            source,
            len(places),
            number(sum(own[place].on_all for place in places) / len(own), sign=True),
            number(sum(own[place].from_all for place in places) / len(places), sign=True),
            number(sum(own[place].force for place in places) / len(places), sign=True),
        )
        for source, places in sources.items()
    ]
    head = ("source", "pairs", "its part in the step on all", "from all", "on its own")
    return words.table("sources", head, rows, "snnnn")


def pull_figure(audit: Audit, words: Words) -> Figure:
    """Pull up and push down of every training pair on its own chosen answer."""
    rows = [row for row in audit.rows if row.split == "train"]
    moved = {change.pair_id: change.change for change in audit.changes if change.split == "train"}
    groups = {
        "not trained yet": (CHOSEN, [row for row in rows if row.pair_id not in moved]),
        "rose in training": (UP, [row for row in rows if moved.get(row.pair_id, -1) >= 0]),
        "fell in training": (DOWN, [row for row in rows if moved.get(row.pair_id, 0) < 0]),
    }
    plot = go.Figure(
        layout=base_layout(
            440,
            xaxis={"title": {"text": "pull up, through y⁺ (nats)"}},
            yaxis={"title": {"text": "push down, through y⁻ (nats)"}},
        )
    )
    low = min(0.0, *(row.push_down for row in rows))
    add_diagonal(plot, (0, min(max(row.pull_up for row in rows), -low)), slope=-1)
    for name, (color, own) in groups.items():
        if own:
            plot.add_scatter(
                x=[row.pull_up for row in own],
                y=[row.push_down for row in own],
                mode="markers",
                name=name,
                marker={"color": color, "size": 7, "line": {"color": PAPER, "width": 0.5}},
                text=[plotly_text(f"“{row.pair_id}”", 32) for row in own],
                customdata=[row.force for row in own],
                hovertemplate="%{text}: up %{x:.3g}, down %{y:+.3g}, together "
                "%{customdata:+.3g} nats<extra></extra>",
            )
    return words.figure("pulls", plot)


def foresight_section(foresight: Sequence[Foresight]) -> Section:
    """Rankings × rank correlation and AUC, on training and on held-out pairs."""
    splits = [split for split in SPLITS if any(row.split == split for row in foresight)]
    by_ranking = {(row.ranking, row.split): row for row in foresight}

    def cells(row: Foresight | None) -> tuple[str, str]:
        if row is None:
            return "–", "–"
        spearman = Interval(row.spearman, row.spearman_low, row.spearman_high, row.pairs)
        auc = Interval(row.auc, row.auc_low, row.auc_high, row.pairs)
        return with_interval(spearman), with_interval(auc, sign=False)

    rows = [
        (*label, *(cell for split in splits for cell in cells(by_ranking.get((ranking, split)))))
        for ranking, label in LABELS.items()
    ]
    head = [
        f"{measure}, {SPLITS[split]}" for split in splits for measure in ("rank correlation", "AUC")
    ]
    counted = {split: next(row for row in foresight if row.split == split) for split in splits}
    words = Words("audit.html", counted=counted)
    heads = ("ranking", "at risk where", *head)
    return words.section("foresight", table(heads, rows, "ss" + "n" * len(head)))


def foreseen_figure(audit: Audit) -> Figure | None:
    """Three rankings against what training did to every chosen answer."""
    if not audit.changes:
        return None
    moved = {(change.split, change.pair_id): change.change for change in audit.changes}
    rows = [row for row in audit.rows if (row.split, row.pair_id) in moved]
    plot = subplots(
        [LABELS[ranking][0] for ranking in _DRAWN],
        420,
        space=0.05,
        margin={"l": 64, "r": 24, "t": 72, "b": 56},
        legend=LEGEND_OVER_TITLES,
        x={"nticks": 6, "title_text": "before training"},
        y={"zerolinecolor": ZERO},
        y_title="Δ log π(y⁺) by training (nats)",
    )
    for col, ranking in enumerate(_DRAWN, start=1):
        for split, color in _COLORS.items():
            own = [row for row in rows if row.split == split]
            plot.add_scatter(
                x=[getattr(row, ranking) for row in own],
                y=[moved[row.split, row.pair_id] for row in own],
                mode="markers",
                name=f"{SPLITS[split]} pairs",
                legendgroup=split,
                showlegend=col == 1,
                marker={"color": color, "size": 6, "line": {"color": PAPER, "width": 0.5}},
                text=[plotly_text(f"“{row.pair_id}”", 32) for row in own],
                hovertemplate="%{text}: %{x:.3g} before, %{y:+.3g} nats by training<extra></extra>",
                row=1,
                col=col,
            )
    fell = [row for row in rows if moved[row.split, row.pair_id] < 0]
    return Words("audit.html", fell=len(fell), audited=len(rows)).figure("foreseen", plot)
