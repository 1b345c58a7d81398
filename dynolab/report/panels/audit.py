"""The figures and tables of an audit: pull and push of every pair, the worst pairs, agreement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from dynolab.audit.foresight import RISKY, Ranking, risk, worst_first
from dynolab.report.inputs.audit import Audit
from dynolab.report.page import Html, excerpt, section, table
from dynolab.report.panels.foresight import LABELS
from dynolab.report.style import (
    CHOSEN,
    DIVERGING,
    DOWN,
    PAPER,
    SPLITS,
    UP,
    ZERO,
    Plate,
    base_layout,
    number,
    plotly_text,
)
from dynolab.results.audit import PairAudit
from dynolab.statistics import rank_correlation

WORST = 10


def pull_plate(audit: Audit) -> Plate:
    """Pull up and push down of every training pair on its own chosen answer."""
    rows = [row for row in audit.rows if row.split == "train"]
    moved = {one.pair_id: one.change for one in audit.changes if one.split == "train"}
    groups = {
        "not trained yet": (CHOSEN, [row for row in rows if row.pair_id not in moved]),
        "rose in training": (UP, [row for row in rows if moved.get(row.pair_id, -1) >= 0]),
        "fell in training": (DOWN, [row for row in rows if moved.get(row.pair_id, 0) < 0]),
    }
    figure = go.Figure()
    end = max(row.pull_up for row in rows)
    low = min(0.0, *(row.push_down for row in rows))
    cancel = min(end, -low)
    figure.add_scatter(
        x=[0, cancel],
        y=[0, -cancel],
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
        line={"color": ZERO, "dash": "dash", "width": 1.5},
    )
    for name, (color, some) in groups.items():
        if some:
            figure.add_scatter(
                x=[row.pull_up for row in some],
                y=[row.push_down for row in some],
                mode="markers",
                name=name,
                marker={"color": color, "size": 7, "line": {"color": PAPER, "width": 0.5}},
                text=[plotly_text(f"“{row.pair_id}”", 32) for row in some],
                customdata=[row.force for row in some],
                hovertemplate="%{text}: up %{x:.3g}, down %{y:+.3g}, together "
                "%{customdata:+.3g} nats<extra></extra>",
            )
    figure.update_layout(
        **base_layout(
            440,
            xaxis={"title": {"text": "pull up, through y⁺ (nats)"}},
            yaxis={"title": {"text": "push down, through y⁻ (nats)"}},
        )
    )
    pushed, fall = sum(row.push_down < 0 for row in rows), sum(row.force < 0 for row in rows)
    return Plate(
        "pulls",
        "What each pair does to its own chosen answer",
        f"Of {len(rows)} training pairs {pushed} push their own chosen answer down through the "
        f"rejected one, and in {fall} that outweighs the pull up.",
        "A point: one pair, by what a gradient step of learning rate one on it alone would do to "
        "its chosen answer, exact to first order. Below the dashed line the step lowers it.",
        figure,
    )


def agreement_plate(rows: Sequence[PairAudit]) -> Plate | None:
    """Rank correlations between the rankings, over training pairs."""
    own = [row for row in rows if row.split == "train"]
    if len(own) < 3:
        return None
    risks = {ranking: risk(own, ranking) for ranking in RISKY}
    names = [LABELS[ranking] for ranking in risks]
    grid = np.array([[rank_correlation(a, b) for b in risks.values()] for a in risks.values()])
    figure = go.Figure()
    figure.add_heatmap(
        z=grid,
        x=names,
        y=names,
        zmin=-1,
        zmax=1,
        colorscale=DIVERGING,
        xgap=2,
        ygap=2,
        text=[[number(value, 2) for value in line] for line in grid],
        texttemplate="%{text}",
        hovertemplate="%{x} and %{y}: %{z:.3f}<extra></extra>",
        colorbar={"thickness": 12, "nticks": 5},
    )
    ticks = {"showgrid": False, "zeroline": False, "type": "category"}
    figure.update_layout(
        **base_layout(
            520,
            xaxis={**ticks, "tickangle": -35},
            yaxis={**ticks, "autorange": "reversed"},
            margin={"l": 190, "r": 24, "t": 24, "b": 130},
        )
    )
    with_ches = number(grid[names.index(LABELS["force"]), names.index(LABELS["ches"])], 2)
    return Plate(
        "rankings",
        "Do the rankings agree?",
        f"The exact force of a pair on its own chosen answer and CHES, its last-layer shortcut, "
        f"order the pairs with rank correlation {with_ches}.",
        "A cell: Spearman’s rank correlation of two rankings’ risks over the training pairs; "
        "1 is the same order, 0 none, −1 the reverse.",
        figure,
    )


def worst_section(audit: Audit, ranking: Ranking) -> Html:
    """The pairs that a ranking puts first, with their texts."""
    own = [row for row in audit.rows if row.split == "train"]
    worst = worst_first(own, ranking)[:WORST]
    moved = {(one.split, one.pair_id): one.change for one in audit.changes}
    rows = []
    for row in worst:
        text = audit.texts[row.split, row.pair_id]
        change = moved.get((row.split, row.pair_id))
        rows.append(
            (
                row.pair_id,
                excerpt(text.prompt, 90, end=True),
                excerpt(text.chosen, 90),
                excerpt(text.rejected or "", 90),
                *(
                    number(value, sign=True)
                    for value in (row.pull_up, row.push_down, row.from_all, row.on_all)
                ),
                number(row.ches),
                number(change, sign=True),
            )
        )
    head = (
        "pair",
        "prompt",
        "chosen y⁺",
        "rejected y⁻",
        "pull up",
        "push down",
        "from all",
        "on all",
        "CHES",
        "Δ by training",
    )
    return section(
        f"worst-{ranking}",
        f"Worst by the {LABELS[ranking]}",
        f"The {len(worst)} of {len(own)} {SPLITS['train']} pairs that this ranking puts first.",
        table(head, rows, "ssssnnnnnn"),
    )
