"""The chapter on squeezing: what is provable of one softmax, and what is left of it in a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dynolab.claims.squeezing import model_verdicts, softmax_verdicts
from dynolab.data.rows import read_rows
from dynolab.report.page import Html, Tile
from dynolab.report.pages.chapter import Chapter
from dynolab.report.panels.pushes import explained_plate, rank_plate
from dynolab.report.panels.softmax import panel_plate, shape_plate, step_plate
from dynolab.report.style import Plate, number
from dynolab.results.pushes import LeftOver, PairPush, RankChange
from dynolab.results.softmax import CaseCount, Panel, ShapePoint, StepPath
from dynolab.statistics import share_interval

_LEAD = (
    "A negative gradient on a class moves its probability to what is already likely, and little "
    "else: squeezing. Of one softmax that is provable, and every statement below was tried on "
    "random distributions. "
)
_OF_MODEL = (
    "Of a language model, whose tokens share their parameters, it is no theorem: there the "
    "rejected answers of {pairs} pairs were pushed down one at a time, each from the same "
    "weights, and the change of every token of the vocabulary compared with what the softmax "
    "alone, the last layer, and the first order in all weights foretell."
)
_SOURCE = (
    "Claims 1 to 5 are those of Ren & Sutherland (arXiv 2407.10490); the rule and its reach are "
    "derived from Δ log pᵢ = η (pᵢ + p_y − Σⱼ pⱼ²) + O(η²), which is concave in η. Counts are of "
    "random cases, brackets the upper end of Wilson’s 95% interval; of the language model means "
    "over pairs with 95% intervals."
)


@dataclass(frozen=True)
class Squeezing:
    """The rows of both parts; those of the language model may be missing."""

    counts: Sequence[CaseCount]
    panels: Sequence[Panel]
    shapes: Sequence[ShapePoint]
    paths: Sequence[StepPath]
    pushes: Sequence[PairPush] = field(default=())
    left: Sequence[LeftOver] = field(default=())
    ranks: Sequence[RankChange] = field(default=())


def read_squeezing(softmax: Path, push: Path | None) -> Squeezing:
    """The rows that the stages wrote."""
    return Squeezing(
        counts=tuple(read_rows(softmax / "counts.jsonl", CaseCount)),
        panels=tuple(read_rows(softmax / "panels.jsonl", Panel)),
        shapes=tuple(read_rows(softmax / "shapes.jsonl", ShapePoint)),
        paths=tuple(read_rows(softmax / "step_paths.jsonl", StepPath)),
        pushes=() if push is None else tuple(read_rows(push / "pushes.jsonl", PairPush)),
        left=() if push is None else tuple(read_rows(push / "explained.jsonl", LeftOver)),
        ranks=() if push is None else tuple(read_rows(push / "ranks.jsonl", RankChange)),
    )


def squeezing_chapter(found: Squeezing) -> Chapter:
    """Claims and figures."""
    pairs = len({one.pair_id for one in found.pushes})
    verdicts = [*softmax_verdicts(found.counts)]
    content: list[Plate | Html] = [
        panel_plate([one for one in found.panels if one.classes == classes])
        for classes in dict.fromkeys(one.classes for one in found.panels)
    ]
    content += [shape_plate(found.shapes), step_plate(found.paths)]
    if found.pushes:
        verdicts += model_verdicts(found.pushes, found.left)
        content += [explained_plate(found.left), rank_plate(found.ranks)]
    return Chapter(
        title="Squeezing: where pushed-down probability goes",
        lead=_LEAD + (_OF_MODEL.format(pairs=pairs) if pairs else ""),
        verdicts=verdicts,
        content=content,
        tiles=_tiles(found),
        source=_SOURCE,
    )


def _tiles(found: Squeezing) -> list[Tile]:
    exact = [one for one in found.counts if one.statement in ("label_falls", "best_rises")]
    against = sum(one.violations for one in exact)
    tiles = [
        Tile(
            "Violations of claims 1 and 2",
            f"{against:.0f}",
            f"of {sum(one.cases for one in exact):,} random cases",
        )
    ]
    peaky = [one for one in found.counts if one.statement == "peakier_more_fall"]
    if peaky:
        one = peaky[0]
        share = share_interval(one.violations, one.cases)
        ends = " to ".join(f"{number(100 * end, 2)}%" for end in (share.low, share.high))
        tiles.append(
            Tile(
                "Against claim 3",
                f"{number(100 * share.mean, 2)}%",
                f"of cases, V = {one.classes:,}: a trend; {ends}",
            )
        )
    for left in found.left:
        if (left.answer, left.picture) == ("rejected", "last_layer"):
            ends = " to ".join(f"{100 * (1 - end):.0f}%" for end in (left.high, left.low))
            tiles.append(
                Tile(
                    "Explained by the last layer",
                    f"{100 * (1 - left.left):.0f}%",
                    f"of a push on an answer; {ends}",
                )
            )
    return tiles
