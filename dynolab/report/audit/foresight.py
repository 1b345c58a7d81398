"""Which ranking of pairs, made before training, predicts whose chosen answer falls."""

from __future__ import annotations

from collections.abc import Sequence

from dynolab.audit.foresight import Ranking
from dynolab.data.rows import Split
from dynolab.report.figure import LEGEND_OVER_TITLES, Figure, subplots
from dynolab.report.inputs.audit import Audit
from dynolab.report.page import Section, section, table
from dynolab.report.style import DOWN, HISTORY, PAPER, SPLITS, ZERO
from dynolab.report.text import join, plotly_text, true_minus, with_interval
from dynolab.results.audit import Foresight
from dynolab.statistics import Interval

LABELS: dict[Ranking, str] = {
    "from_all": "force of all pairs on it",
    "on_all": "pair’s force on all",
    "force": "pair’s force on its own",
    "push_down": "pair’s push-down alone",
    "ches": "CHES",
    "ches_per_token": "CHES per token",
    "likelihood_gap": "likelihood gap",
    "edit_distance": "edit distance",
}
_AT_RISK_WHERE: dict[Ranking, str] = {
    "from_all": "a step on all training pairs lowers the answer",
    "on_all": "a step on the pair lowers all chosen answers",
    "force": "a step on the pair lowers its own chosen answer",
    "push_down": "the pair’s rejected tokens lower its own chosen answer",
    "ches": "both answers look alike to the last layer",
    "ches_per_token": "the same, with means over tokens",
    "likelihood_gap": "the rejected answer is far less likely",
    "edit_distance": "the answers share many tokens",
}
_DRAWN: tuple[Ranking, ...] = ("from_all", "force", "ches")
_COLORS: dict[Split, str] = {"train": DOWN, "heldout": HISTORY}


def foresight_section(foresight: Sequence[Foresight]) -> Section:
    """Rankings × rank correlation and AUC, on training and on held-out pairs."""
    name, title = "foresight", "Predicted before training"
    if not foresight:
        return section(name, title, "No pair was audited before training.")
    splits = [split for split in SPLITS if any(row.split == split for row in foresight)]
    by_ranking = {(row.ranking, row.split): row for row in foresight}
    rows = [
        (
            label,
            _AT_RISK_WHERE[ranking],
            *(cell for split in splits for cell in _cells(by_ranking.get((ranking, split)))),
        )
        for ranking, label in LABELS.items()
    ]
    head = [
        f"{measure}, {SPLITS[split]}" for split in splits for measure in ("rank correlation", "AUC")
    ]
    return section(
        name,
        title,
        _message(foresight, splits),
        table(("ranking", "at risk where", *head), rows, "ss" + "n" * len(head)),
        note="All rankings were made with the model that preference training starts from. Rank "
        "correlation: Spearman’s, of the risk with the fall −Δ log π of the chosen answer; 0 is "
        "chance, below 0 the ranking is reversed. AUC: the probability that an answer that fell "
        "had a higher risk than one that did not; ½ is chance. Brackets: 95% bootstrap over "
        "pairs. CHES: Razin et al., arXiv 2410.08847.",
    )


def _cells(row: Foresight | None) -> tuple[str, str]:
    if row is None:
        return "–", "–"
    spearman = Interval(row.spearman, row.spearman_low, row.spearman_high, row.pairs)
    auc = Interval(row.auc, row.auc_low, row.auc_high, row.pairs)
    return with_interval(spearman), with_interval(auc, sign=False)


def _message(foresight: Sequence[Foresight], splits: Sequence[Split]) -> str:
    titles: dict[str, str] = dict(LABELS.items())
    fallen, predictors = [], []
    for split in splits:
        own = [row for row in foresight if row.split == split]
        fallen.append(f"{own[0].fallen} of {own[0].pairs} {SPLITS[split]}")
        if known := [row for row in own if row.spearman == row.spearman]:
            best = max(known, key=lambda row: row.spearman)
            predictors.append(
                f"{titles.get(best.ranking, best.ranking)} on {SPLITS[split]} pairs "
                f"(rank correlation {_correlation(best)})"
            )
    best_predictors = f" Best predictor: {join(predictors)}." if predictors else ""
    own_force = [row for row in foresight if row.ranking == "force" and row.spearman <= 0]
    alone = (
        " What a pair does to its own chosen answer does not predict whether it falls: the "
        "other pairs decide."
        if len(own_force) == len(splits)
        else ""
    )
    return f"The chosen answers of {join(fallen)} pairs fell.{best_predictors}{alone}"


def _correlation(row: Foresight) -> str:
    return true_minus(f"{row.spearman:.2f}")


def foreseen_figure(audit: Audit) -> Figure | None:
    """Three rankings against what training did to every chosen answer."""
    if not audit.changes:
        return None
    moved = {(change.split, change.pair_id): change.change for change in audit.changes}
    rows = [row for row in audit.rows if (row.split, row.pair_id) in moved]
    plot = subplots(
        [LABELS[ranking][0].upper() + LABELS[ranking][1:] for ranking in _DRAWN],
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
    fell = sum(moved[row.split, row.pair_id] < 0 for row in rows)
    correlations = [
        f"{LABELS[ranking]} {_correlation(row)}"
        for ranking in _DRAWN
        for row in audit.foresight
        if (row.ranking, row.split) == (ranking, "train")
    ]
    return Figure(
        "foreseen",
        "What was predicted, and what happened",
        f"{fell} of {len(rows)} chosen answers fell. Rank correlations with the fall on training "
        f"pairs: {join(correlations) or 'none'}.",
        "A point: one pair; across: its prediction before training; up: what training did to its "
        "chosen answer. Forces predict well if points rise to the right, CHES if they fall. The "
        "force at the start orders the answers; later steps decide from where on they fall, so its "
        "sign alone predicts nothing.",
        plot,
    )
