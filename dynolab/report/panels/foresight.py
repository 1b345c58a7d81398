"""Which ranking of pairs, made before training, foresaw whose chosen answer falls."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from dynolab.audit.foresight import Ranking
from dynolab.data.rows import Split
from dynolab.report.inputs.audit import Audit
from dynolab.report.page import Html, section, table
from dynolab.report.style import (
    DOWN,
    HISTORY,
    PAPER,
    SPLITS,
    ZERO,
    Plate,
    axis_key,
    axis_name,
    base_layout,
    columns,
    join,
    panel_title,
    plotly_text,
    with_interval,
)
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
_READ: dict[Ranking, str] = {
    "from_all": "a step on all training pairs lowers the answer",
    "on_all": "a step on the pair lowers all chosen answers",
    "force": "a step on the pair lowers its own chosen answer",
    "push_down": "the pair’s rejected tokens lower its own chosen answer",
    "ches": "both answers look alike to the last layer",
    "ches_per_token": "the same, of means over tokens",
    "likelihood_gap": "the rejected answer is far less likely",
    "edit_distance": "the answers share many tokens",
}
_DRAWN: tuple[Ranking, ...] = ("from_all", "force", "ches")
_COLORS: dict[Split, str] = {"train": DOWN, "heldout": HISTORY}


def foresight_section(found: Sequence[Foresight]) -> Html:
    """Rankings × rank correlation and AUC, on training and on held-out pairs."""
    name, title = "foresight", "Foreseen before training"
    if not found:
        return section(name, title, "No pair was audited before training.")
    splits = [split for split in SPLITS if any(one.split == split for one in found)]
    cells = {(one.ranking, one.split): one for one in found}
    rows = [
        [
            label,
            _READ[ranking],
            *(cell for split in splits for cell in _cells(cells.get((ranking, split)))),
        ]
        for ranking, label in LABELS.items()
    ]
    head = [f"{what}, {SPLITS[split]}" for split in splits for what in ("rank correlation", "AUC")]
    return section(
        name,
        title,
        _message(found, splits),
        table(("ranking", "at risk where", *head), rows, "ss" + "n" * len(head)),
        note="All rankings were made from the model that preference training starts from. Rank "
        "correlation: Spearman’s, of the risk with the fall −Δ log π of the chosen answer; 0 is "
        "chance, below 0 the ranking is wrong way round. AUC: how probably an answer that fell "
        "has the greater risk than one that did not; ½ is chance. Brackets: 95% bootstrap over "
        "pairs. CHES: Razin et al., arXiv 2410.08847.",
    )


def _cells(one: Foresight | None) -> tuple[str, str]:
    if one is None:
        return "–", "–"
    spearman = Interval(one.spearman, one.spearman_low, one.spearman_high, one.pairs)
    auc = Interval(one.auc, one.auc_low, one.auc_high, one.pairs)
    return with_interval(spearman), with_interval(auc, sign=False)


def _message(found: Sequence[Foresight], splits: Sequence[Split]) -> str:
    parts, said = [], []
    for split in splits:
        own = [one for one in found if one.split == split]
        parts.append(f"{own[0].fallen} of {own[0].pairs} {SPLITS[split]}")
        known = [one for one in own if one.spearman == one.spearman]
        if known:
            best = max(known, key=lambda one: one.spearman)
            said.append(
                f"on {SPLITS[split]} pairs best by {_label(best)} (rank correlation "
                f"{_correlation(best)})"
            )
    own_force = [one for one in found if one.ranking == "force" and one.spearman <= 0]
    alone = (
        " What a pair does to its own chosen answer does not tell whether it falls: the others "
        "decide."
        if len(own_force) == len(splits)
        else ""
    )
    foreseen = f" It was foreseen {join(said)}." if said else ""
    return f"The chosen answers of {join(parts)} pairs fell.{foreseen}{alone}"


def _correlation(one: Foresight) -> str:
    return f"{one.spearman:.2f}".replace("-", "−")


def _label(one: Foresight) -> str:
    return next((label for name, label in LABELS.items() if name == one.ranking), one.ranking)


def foreseen_plate(audit: Audit) -> Plate | None:
    """Three rankings against what training did to every chosen answer."""
    if not audit.changes:
        return None
    moved = {(one.split, one.pair_id): one.change for one in audit.changes}
    rows = [row for row in audit.rows if (row.split, row.pair_id) in moved]
    figure, annotations = go.Figure(), []
    layout = base_layout(420, margin={"l": 64, "r": 24, "t": 72, "b": 56})
    for index, (ranking, domain) in enumerate(
        zip(_DRAWN, columns(len(_DRAWN), 0.05), strict=True), start=1
    ):
        axes = {"xaxis": axis_name("x", index), "yaxis": axis_name("y", index)}
        for split, color in _COLORS.items():
            some = [row for row in rows if row.split == split]
            figure.add_scatter(
                x=[getattr(row, ranking) for row in some],
                y=[moved[row.split, row.pair_id] for row in some],
                mode="markers",
                name=f"{SPLITS[split]} pairs",
                legendgroup=split,
                showlegend=index == 1,
                marker={"color": color, "size": 6, "line": {"color": PAPER, "width": 0.5}},
                text=[plotly_text(f"“{row.pair_id}”", 32) for row in some],
                hovertemplate="%{text}: %{x:.3g} before, %{y:+.3g} nats by training<extra></extra>",
                **axes,
            )
        layout[axis_key("x", index)] = {
            "domain": domain,
            "anchor": axes["yaxis"],
            "nticks": 6,
            "title": {"text": "before training"},
        }
        layout[axis_key("y", index)] = {"anchor": axes["xaxis"], "zerolinecolor": ZERO}
        annotations.append(panel_title(_headed(ranking), domain[0], 1.02))
    layout["yaxis"]["title"] = {"text": "Δ log π(y⁺) by training (nats)"}
    layout["annotations"] = annotations
    layout["legend"] = {
        "orientation": "h",
        "x": 0.8,
        "xanchor": "right",
        "y": 1.1,
        "yanchor": "bottom",
    }
    figure.update_layout(**layout)
    fell = sum(moved[row.split, row.pair_id] < 0 for row in rows)
    said = join(
        [
            f"{LABELS[ranking]} {_correlation(one)}"
            for ranking in _DRAWN
            for one in audit.foresight
            if (one.ranking, one.split) == (ranking, "train")
        ]
    )
    return Plate(
        "foreseen",
        "What was foreseen, and what came",
        f"{fell} of {len(rows)} chosen answers fell. Rank correlations with the fall on training "
        f"pairs: {said or 'none'}.",
        "A point: one pair, sideways what was said of it before training, upwards what training "
        "did to its chosen answer. Forces foresee where points rise to the right, CHES where they "
        "fall. The force at the start orders the answers; from where on they fall is decided by "
        "the steps after it, so its sign is no verdict.",
        figure,
    )


def _headed(ranking: Ranking) -> str:
    label = LABELS[ranking]
    return label[0].upper() + label[1:]
