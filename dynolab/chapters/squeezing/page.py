"""The chapter on squeezing: what is provable of one softmax, and how much holds in a model."""

from __future__ import annotations

from dynolab.chapters.inputs import SqueezingRows
from dynolab.chapters.page import Chapter
from dynolab.chapters.squeezing.claims import model_verdicts, softmax_verdicts
from dynolab.chapters.squeezing.push_figures import explained_figure, rank_figure
from dynolab.chapters.squeezing.softmax_figures import panel_figure, shape_figure, step_figure
from dynolab.report.figure import Figure
from dynolab.report.page import Tile
from dynolab.report.text import number
from dynolab.statistics import share_interval

_LEAD = (
    "A negative gradient on a class moves its probability to what is already likely, and little "
    "else: squeezing. For one softmax that is provable, and every statement below was tested on "
    "random distributions. "
)
_OF_MODEL = (
    "For a language model, whose tokens share their parameters, it is not a theorem: there the "
    "rejected answers of {pairs} pairs were pushed down one at a time, each from the same "
    "weights, and the change of every token of the vocabulary was compared with what the softmax "
    "alone, the last layer, and the first order in all weights predict."
)
_SOURCE = (
    "Claims 1 to 5 are those of Ren & Sutherland (arXiv 2407.10490); the rule and its reach are "
    "derived from Δ log pᵢ = η (pᵢ + p_y − Σⱼ pⱼ²) + O(η²), which is concave in η. Counts are of "
    "random cases, brackets hold the upper end of Wilson’s 95% interval; figures of the language "
    "model are means over pairs with 95% intervals."
)


def squeezing_chapter(rows: SqueezingRows) -> Chapter:
    """The chapter's claims and figures."""
    verdicts = [*softmax_verdicts(rows.counts)]
    content: list[Figure] = [
        panel_figure([panel for panel in rows.panels if panel.classes == classes])
        for classes in dict.fromkeys(panel.classes for panel in rows.panels)
    ]
    content += [shape_figure(rows.shapes), step_figure(rows.paths)]
    if rows.pushes:
        verdicts += model_verdicts(rows.pushes, rows.left)
        content += [explained_figure(rows.left), rank_figure(rows.ranks)]
    pairs = len({push.pair_id for push in rows.pushes})
    return Chapter(
        title="Squeezing: where pushed-down probability goes",
        lead=_LEAD + (_OF_MODEL.format(pairs=pairs) if pairs else ""),
        verdicts=verdicts,
        content=content,
        tiles=_tiles(rows),
        source=_SOURCE,
    )


def _tiles(rows: SqueezingRows) -> list[Tile]:
    exact = [count for count in rows.counts if count.statement in ("label_falls", "best_rises")]
    against = sum(count.violations for count in exact)
    cases = sum(count.cases for count in exact)
    tiles = [Tile("Violations of claims 1 and 2", f"{against:.0f}", f"of {cases:,} random cases")]
    for count in [count for count in rows.counts if count.statement == "peakier_more_fall"][:1]:
        share = share_interval(count.violations, count.cases)
        ends = " to ".join(f"{number(100 * end, 2)}%" for end in (share.low, share.high))
        detail = f"of cases at V = {count.classes:,}, a trend; {ends}"
        tiles.append(Tile("Against claim 3", f"{number(100 * share.mean, 2)}%", detail))
    for left in rows.left:
        if (left.answer, left.picture) == ("rejected", "last_layer"):
            ends = " to ".join(f"{100 * (1 - end):.0f}%" for end in (left.high, left.low))
            explained, detail = f"{100 * (1 - left.left):.0f}%", f"of a push on an answer; {ends}"
            tiles.append(Tile("Explained by the last layer", explained, detail))
    return tiles
