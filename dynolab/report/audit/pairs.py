"""The figures and tables of an audit: pull and push of every pair, the worst pairs, agreement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import plotly.graph_objects as go

from dynolab.audit.foresight import RISKY, risk, worst_first
from dynolab.report.audit.foresight import LABELS
from dynolab.report.figure import Figure, add_diagonal, base_layout, correlation_plot
from dynolab.report.inputs.audit import Audit
from dynolab.report.page import Section, section, table
from dynolab.report.style import CHOSEN, DIVERGING, DOWN, PAPER, UP
from dynolab.report.text import excerpt, number, plotly_text
from dynolab.results.audit import PairAudit
from dynolab.statistics import rank_correlation

WORST = 10

_Worst = Literal["on_all", "from_all", "force"]
_TITLES: dict[_Worst, str] = {
    "on_all": "Pairs that lower the others: leave these out first",
    "from_all": "Answers that will fall",
    "force": "Pairs that lower their own chosen answer",
}
_MESSAGES: dict[_Worst, str] = {
    "on_all": "The {} of {} pairs whose own step would do most harm to the chosen answers of all "
    "pairs, on average (on all). A remedy’s filter by on_all leaves the worst of these out.",
    "from_all": "The {} of {} pairs whose chosen answer a step on all pairs would lower most, or "
    "raise least (from all). They suffer; those above do the harm.",
    "force": "The {} of {} pairs whose step would lower their own chosen answer most, or raise it "
    "least (pull up plus push down): their two answers share what the push takes away.",
}


def pull_figure(audit: Audit) -> Figure:
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
    cancel = min(max(row.pull_up for row in rows), -low)
    add_diagonal(plot, (0, cancel), slope=-1)
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
    pushed, fall = sum(row.push_down < 0 for row in rows), sum(row.force < 0 for row in rows)
    return Figure(
        "pulls",
        "What each pair does to its own chosen answer",
        f"Of {len(rows)} training pairs, {pushed} push their own chosen answer down through the "
        f"rejected one, and in {fall} that outweighs the pull up.",
        "A point: one pair, by what a gradient step with learning rate one on it alone would do to "
        "its chosen answer, exact to first order. Below the dashed line the step lowers it.",
        plot,
    )


def agreement_figure(rows: Sequence[PairAudit]) -> Figure | None:
    """Rank correlations between the rankings, over training pairs."""
    own = [row for row in rows if row.split == "train"]
    if len(own) < 3:
        return None
    risks = {ranking: risk(own, ranking) for ranking in RISKY}
    names = [LABELS[ranking] for ranking in risks]
    grid = np.array([[rank_correlation(a, b) for b in risks.values()] for a in risks.values()])
    plot = correlation_plot(
        520,
        z=grid,
        x=names,
        y=names,
        zmin=-1,
        zmax=1,
        colorscale=DIVERGING,
        text=[[number(value, 2) for value in line] for line in grid],
        colorbar={"thickness": 12, "nticks": 5},
    )
    plot.update_layout(margin={"l": 190, "r": 24, "t": 24, "b": 130}, xaxis_tickangle=-35)
    with_ches = number(grid[names.index(LABELS["force"]), names.index(LABELS["ches"])], 2)
    return Figure(
        "rankings",
        "Do the rankings agree?",
        f"The exact force of a pair on its own chosen answer and CHES, its last-layer shortcut, "
        f"order the pairs with rank correlation {with_ches}.",
        "A cell: Spearman’s rank correlation of two rankings’ risks over the training pairs; "
        "1 is the same order, 0 none, −1 the reverse.",
        plot,
    )


def worst_section(audit: Audit, ranking: _Worst) -> Section:
    """The pairs that a ranking puts first, with their texts, and what it is good for."""
    own = [row for row in audit.rows if row.split == "train"]
    worst = worst_first(own, ranking)[:WORST]
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
            *((number(moved.get((row.split, row.pair_id)), sign=True),) if moved else ()),
        )
        for row in worst
        for pair in (audit.texts[row.split, row.pair_id],)
    ]
    return section(
        f"worst-{ranking}",
        _TITLES[ranking],
        _MESSAGES[ranking].format(len(worst), len(own)),
        table(
            (
                "pair",
                "prompt",
                "chosen y⁺",
                "rejected y⁻",
                "pull up",
                "push down",
                "from all",
                "on all",
                "CHES",
                *(("Δ by training",) if moved else ()),
            ),
            rows,
            "ssssnnnnn" + "n" * bool(moved),
        ),
        note="Nats of a gradient step with learning rate one, to first order. Pull up, push down: "
        "what the pair's chosen and rejected answer do to its own chosen answer. From all: what a "
        "step on all pairs does to it. On all: what a step on this pair does to the chosen "
        "answers of all pairs on average. All pairs are in the audit's table in MLflow, and in "
        "audit.jsonl of its result, whose folder “dynolab path” prints.",
    )
