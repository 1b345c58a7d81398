"""The chapter on simplicity: which mappings a network learns fast, and why."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynolab.chapters.inputs import SimplicityRows
from dynolab.chapters.page import Chapter
from dynolab.chapters.simplicity.claims import difference, mapping_verdicts, per_seed
from dynolab.chapters.simplicity.figures import (
    cooperation_figure,
    groups_of,
    influence_figure,
    loss_figure,
    similarity_figure,
    speed_figure,
)
from dynolab.chapters.simplicity.rows import LearnedMapping
from dynolab.report.page import Tile, section, table
from dynolab.report.text import join, mean_and_ends, number, with_interval
from dynolab.statistics import mean_interval

_SOURCE = (
    "Claims follow Ren & Sutherland (arXiv 2409.09626). Intervals are t-intervals over seeds, that "
    "is over initial weights, which all mappings of a seed share. Speed is measured by the mean "
    "loss over the steps of training, the area under the loss; coding lengths are log₂ m! + m log₂ "
    "v! bits for compositional mappings and log₂ (v^m)! for other bijections."
)
_HEAD = (
    "space",
    "mappings",
    "number",
    "similarity",
    "area, nats",
    "cooperation before training",
    "over training",
)


def simplicity_chapter(rows: SimplicityRows) -> Chapter:
    """The chapter's claims and figures."""
    spaces, paths = rows.mappings, rows.paths
    kinds = [line for mappings in spaces for line in _table_rows(mappings)]
    return Chapter(
        title="Simplicity: which mappings are learned fast",
        lead=_lead(spaces),
        verdicts=[verdict for mappings in spaces for verdict in mapping_verdicts(mappings)],
        content=[
            speed_figure(spaces),
            loss_figure(paths, spaces),
            similarity_figure(spaces),
            cooperation_figure(paths, spaces),
            influence_figure(spaces),
            section(
                "kinds",
                "Kinds of mappings",
                "Degenerate maps, which give several objects the same message, have no "
                "coding length here and are listed separately.",
                table(_HEAD, kinds, "ssnnnnn"),
                note="Means over mappings, then over seeds [95% t-interval over seeds].",
            ),
        ],
        tiles=[_tile(mappings) for mappings in spaces[:3]],
        source=_SOURCE,
    )


def _table_rows(mappings: Sequence[LearnedMapping]) -> list[tuple[str, ...]]:
    """The table's rows: one for each group of mappings."""
    lines: list[tuple[str, ...]] = []
    for name, own in groups_of(mappings).items():
        similarity = [row.similarity for row in own if np.isfinite(row.similarity)]
        area, start, over_training = (
            mean_interval(per_seed(own, measured))
            for measured in ("area", "start_cooperation", "cooperation")
        )
        lines.append(
            (
                mappings[0].space.label,
                name if own[0].kind != "degenerate" else f"degenerate, {name}",
                str(len(own)),
                number(float(np.mean(similarity)), 2) if similarity else "–",
                with_interval(area, sign=False),
                with_interval(start),
                with_interval(over_training),
            )
        )
    return lines


def _lead(spaces: Sequence[Sequence[LearnedMapping]]) -> str:
    counts = []
    for mappings in spaces:
        space = mappings[0].space
        every = "all " if len(mappings) == space.objects**space.objects else ""
        counts.append(f"{every}{len(mappings)} of {space.label}")
    seeds = len(spaces[0][0].area)
    return (
        "An object has m attributes of v values (written m×v), and a message has as many letters. "
        "A mapping from objects to messages is compositional if every letter encodes one "
        f"attribute: it then has a short description. A small network learned {join(counts)} "
        f"mappings, each from {seeds} different initial weights, all mappings of a space at once."
    )


def _tile(mappings: Sequence[LearnedMapping]) -> Tile:
    mean, ends = mean_and_ends(difference(mappings, "area"))
    return Tile(
        f"Δ area at {mappings[0].space.label}",
        mean,
        f"nats {ends}: compositional minus holistic",
    )
