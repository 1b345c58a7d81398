"""The page of an audit: what preference pairs would do, and what training then did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from dynolab.audit.foresight import FORCES, TRIVIAL, Ranking, worst_first
from dynolab.data.rows import Split, rows_by_source
from dynolab.grouping import attributes
from dynolab.report.figure import (
    LEGEND_OVER_TITLES,
    Figure,
    add_diagonal,
    dot,
    empty_plot,
    in_panel,
    subplots,
)
from dynolab.report.inputs.study import Audit, AuditPageInputs
from dynolab.report.page import Section, Words, table, write_page
from dynolab.report.style import (
    CHOSEN,
    DOWN,
    HISTORY,
    SPLITS,
    UP,
    ZERO,
    excerpt,
    number,
    numbers,
    plotly_text,
    with_interval,
)
from dynolab.results.audit import Band, Foresight, PairAudit
from dynolab.statistics import Interval, column

LABELS: dict[str, tuple[str, str]] = {
    "from_all": ("force of all pairs on it", "a step on all training pairs lowers the answer"),
    "from_others": ("force of the other pairs on it", "the other training pairs lower the answer"),
    "on_all": ("pair’s force on all", "a step on the pair lowers all chosen answers"),
    "force": ("pair’s force on its own", "a step on the pair lowers its own chosen answer"),
    "push_down": ("pair’s push-down alone", "its rejected tokens lower its own chosen answer"),
    "ches": ("CHES", "both answers look alike to the last layer"),
    "ches_per_token": ("CHES per token", "the same, with means over tokens"),
    "likelihood_gap": ("likelihood gap", "the rejected answer is far less likely"),
    "chosen_logp": ("log π(y⁺) before training", "the model hardly says the answer"),
    "chosen_logp_per_token": ("log π(y⁺) per token", "the same, over the answer’s tokens"),
    "chosen_tokens": ("length of y⁺", "the answer is long"),
    "edit_distance": ("edit distance", "the answers share many tokens"),
    "word_overlap": ("word overlap", "it resembles rejected answers more than chosen ones"),
    "random": ("random", "nowhere: a number of the pair’s id"),
}
"""What each ranking is called, and where it sees a risk."""

WORST = 10
FOREIGN = -4.0
"""Nats a token, a perplexity of 55, below which a model's answers were hardly its own."""

_DRAWN: tuple[Ranking, ...] = ("from_all", "force", "ches")
_BY_CHANGE = {"not trained yet": CHOSEN, "rose in training": UP, "fell in training": DOWN}
_COLORS: dict[Split, str] = {"train": DOWN, "heldout": HISTORY}


def write_audit_page(inputs: AuditPageInputs, folder: Path) -> None:
    """Writes the self-contained `audit.html`, and every figure as a file in `figures/`."""
    audit = inputs.audit
    rows = audit.trained
    token = column(rows, "chosen_logp").sum() / column(rows, "chosen_tokens").sum()
    words = Words(
        "audit.html",
        inputs=inputs,
        pairs=len(rows),
        heldout=len(audit.rows) - len(rows),
        own=int((column(rows, "force") < 0).sum()),
        lowered=int((column(rows, "from_all") < 0).sum()),
        harmful=[row.pair_id for row in worst_first(rows, "on_all") if row.on_all < 0],
        token=token if token < FOREIGN else None,
        best_ranking=_best_ranking(audit.foresight, "train"),
    )
    page = words.page(
        inputs.name,
        content=[
            worst_section(audit, "on_all", words),
            sources_section(audit, words),
            worst_section(audit, "from_all", words),
            pull_figure(audit, words),
            band_section(audit),
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
    moved = audit.moved
    rows = []
    for row in worst_first(audit.trained, ranking)[:WORST]:
        name = row.split, row.pair_id
        pair = audit.texts[name]
        answers = excerpt(pair.chosen, 90), excerpt(pair.rejected or "", 90)
        nats = numbers(row.pull_up, row.push_down, row.from_all, row.on_all, sign=True)
        trained = number(moved.get(name), sign=True)
        prompt = excerpt(pair.prompt, 90, end=True)
        shown = (row.pair_id, prompt, *answers, row.band or "–")
        rows.append((*shown, *nats, number(row.ches), trained))
    nats_head = ("pull up", "push down", "from all", "on all", "CHES", "Δ by training")
    head = ("pair", "prompt", "chosen y⁺", "rejected y⁻", "band", *nats_head)
    return words.section(f"worst-{ranking}", table(head, rows, "sssssnnnnnn", cards=True))


def band_section(audit: Audit) -> Section | None:
    """How many training pairs lie below, inside and above the band, and how many answers fell."""
    if any(row.band is None for row in audit.trained):
        return None  # an older result
    moved, rows = audit.moved, []
    for band in get_args(Band):
        pairs = [(row.split, row.pair_id) for row in audit.trained if row.band == band]
        changes = [moved[pair] for pair in pairs if pair in moved]
        fell = f"{sum(change < 0 for change in changes)} of {len(changes)}" if changes else "–"
        rows.append((band, len(pairs), fell))
    judged = {row.ranking: row for row in audit.foresight if row.split == "train"}
    rivals = [judged[name] for name in TRIVIAL if name in judged]
    words = Words(
        "audit.html",
        judged=judged.get("force"),
        rival=max(rivals, key=lambda row: row.right, default=None),
        labels=LABELS,
    )
    return words.table("band", ("band", "pairs", "chosen answers that fell"), rows, "snn")


def sources_section(audit: Audit, words: Words) -> Section | None:
    """What a step on a source's pairs does to all chosen answers; None for a single source."""
    trained = audit.trained
    rows = []
    for source, places in rows_by_source(attributes(trained, "pair_id")).items():
        pairs = [trained[place] for place in places]
        part = column(pairs, "on_all").sum() / len(trained)
        means = column(pairs, "from_all").mean(), column(pairs, "force").mean()
        rows.append((source, len(pairs), *numbers(part, *means, sign=True)))
    head = ("source", "pairs", "its part in the step on all", "from all", "on its own")
    return words.table("sources", head, rows, "snnnn")


def pull_figure(audit: Audit, words: Words) -> Figure:
    """Pull up and push down of every training pair on its own chosen answer."""
    groups: dict[str, list[PairAudit]] = {name: [] for name in _BY_CHANGE}
    for row in audit.trained:
        change = audit.moved.get((row.split, row.pair_id))
        name = "not trained yet"
        if change is not None:
            name = "fell in training" if change < 0 else "rose in training"
        groups[name].append(row)
    plot = empty_plot(
        440,
        xaxis={"title": {"text": "pull up, through y⁺ (nats)"}},
        yaxis={"title": {"text": "push down, through y⁻ (nats)"}},
    )
    low = min(0.0, column(audit.trained, "push_down").min())
    add_diagonal(plot, (0, min(column(audit.trained, "pull_up").max(), -low)), slope=-1)
    for name, pairs in groups.items():
        if pairs:
            plot.add_scatter(
                x=attributes(pairs, "pull_up"),
                y=attributes(pairs, "push_down"),
                mode="markers",
                name=name,
                marker=dot(_BY_CHANGE[name], 7),
                text=_names(pairs),
                customdata=attributes(pairs, "force"),
                hovertemplate="%{text}: up %{x:.3g}, down %{y:+.3g}, together "
                "%{customdata:+.3g} nats<extra></extra>",
            )
    return words.figure("pulls", plot)


def _names(pairs: Sequence[PairAudit]) -> list[str]:
    return [plotly_text(f"“{row.pair_id}”", 32) for row in pairs]


def foresight_section(foresight: Sequence[Foresight]) -> Section:
    """Rankings × rank correlation, partial rank correlation and AUC, on each split."""
    splits = [split for split in SPLITS if any(row.split == split for row in foresight)]
    by_ranking = {(row.ranking, row.split): row for row in foresight}
    rows = []
    from_elsewhere = {row.ranking: (row.ranking, "its score is high") for row in foresight}
    for ranking, label in (from_elsewhere | LABELS).items():
        cells = [cell for split in splits for cell in _scores(by_ranking.get((ranking, split)))]
        rows.append((*label, *cells))
    measures = ("rank correlation", "given the other kind’s best", "AUC", "right")
    head = [f"{measure}, {SPLITS[split]}" for split in splits for measure in measures]
    counted = [(by_ranking[FORCES[0], split], _best_ranking(foresight, split)) for split in splits]
    words = Words("audit.html", counted=counted)
    heads = ("ranking", "at risk where", *head)
    return words.section("foresight", table(heads, rows, "ss" + "n" * len(head)))


def _scores(row: Foresight | None) -> list[str]:
    """A ranking's four figures; a dash where it has none."""
    if row is None:
        return ["–"] * 4
    spearman = Interval(row.spearman, row.spearman_low, row.spearman_high, row.pairs)
    partial = Interval(row.partial, row.partial_low, row.partial_high, row.pairs)
    auc = Interval(row.auc, row.auc_low, row.auc_high, row.pairs)
    right = Interval(row.right, row.right_low, row.right_high, row.pairs)
    signed, shares = (spearman, partial), (auc, right)
    cells = [*map(with_interval, signed)]
    return [*cells, *(with_interval(share, sign=False) for share in shares)]


def _best_ranking(foresight: Sequence[Foresight], split: Split) -> str:
    """A sentence: the best force and the best trivial ranking on a split, what the force adds.

    Empty where nothing differs.
    """
    by_ranking = {row.ranking: row for row in foresight if row.split == split}
    if not by_ranking:
        return ""
    trivial = by_ranking[by_ranking[FORCES[0]].given]
    force = by_ranking[trivial.given]
    if not math.isfinite(force.spearman) or not math.isfinite(trivial.spearman):
        return ""
    words = Words(
        "audit.html",
        split=split,
        force=LABELS[force.ranking][0],
        force_correlation=force.spearman,
        trivial=LABELS[trivial.ranking][0],
        trivial_correlation=abs(trivial.spearman),
        reversed=trivial.spearman < 0,
        ahead=force.spearman > abs(trivial.spearman),
        adds=force.partial,
        adds_clearly=force.partial_low > 0,
    )
    return words("best_ranking")


def foreseen_figure(audit: Audit) -> Figure | None:
    """Three rankings against what training did to every chosen answer."""
    if not audit.changes:
        return None
    moved = audit.moved
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
            of_split = [row for row in rows if row.split == split]
            plot.add_scatter(
                x=attributes(of_split, ranking),
                y=[moved[split, row.pair_id] for row in of_split],
                mode="markers",
                **in_panel(col, f"{SPLITS[split]} pairs", split),
                marker=dot(color),
                text=_names(of_split),
                hovertemplate="%{text}: %{x:.3g} before, %{y:+.3g} nats by training<extra></extra>",
            )
    fell = [row for row in rows if moved[row.split, row.pair_id] < 0]
    return Words("audit.html", fell=len(fell), audited=len(rows)).figure("foreseen", plot)
