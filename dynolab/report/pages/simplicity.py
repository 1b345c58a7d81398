"""The chapter on simplicity: which mappings a network learns fast, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dynolab.claims.simplicity import difference, mapping_verdicts
from dynolab.data.rows import read_rows
from dynolab.report.page import Tile, section, table
from dynolab.report.pages.chapter import Chapter
from dynolab.report.panels.mappings import (
    cooperation_plate,
    influence_plate,
    loss_plate,
    similarity_plate,
    speed_plate,
    speed_rows,
)
from dynolab.report.style import join, mean_and_ends
from dynolab.results.simplicity import KindPath, LearnedMapping

_SOURCE = (
    "Claims follow Ren & Sutherland (arXiv 2409.09626). Intervals are t-intervals over seeds, that "
    "is over initial weights; all mappings of a seed start from the same. Speed is the mean loss "
    "over the steps of training, the area under the loss; coding lengths are log₂ m! + m log₂ v! "
    "bits for compositional mappings and log₂ (v^m)! for other bijections."
)
_HEAD = (
    "space",
    "mappings",
    "how many",
    "similarity",
    "area, nats",
    "cooperation before training",
    "over training",
)


@dataclass(frozen=True)
class Simplicity:
    """The rows of every space."""

    mappings: Sequence[Sequence[LearnedMapping]]
    paths: Sequence[Sequence[KindPath]]


def read_simplicity(folders: Sequence[Path]) -> Simplicity:
    """The rows that the stages wrote, space by space."""
    return Simplicity(
        mappings=[tuple(read_rows(one / "mappings.jsonl", LearnedMapping)) for one in folders],
        paths=[tuple(read_rows(one / "paths.jsonl", KindPath)) for one in folders],
    )


def simplicity_chapter(found: Simplicity) -> Chapter:
    """Claims and figures."""
    spaces = found.mappings
    return Chapter(
        title="Simplicity: which mappings are learned fast",
        lead=_lead(spaces),
        verdicts=[verdict for rows in spaces for verdict in mapping_verdicts(rows)],
        content=[
            speed_plate(spaces),
            loss_plate(found.paths, spaces),
            similarity_plate(spaces),
            cooperation_plate(found.paths, spaces),
            influence_plate(spaces),
            section(
                "kinds",
                "Kinds of mappings",
                "Degenerate maps, which give several objects one message, have no coding length "
                "here and stand apart.",
                table(_HEAD, [line for rows in spaces for line in speed_rows(rows)], "ssnnnnn"),
                note="Means over mappings, then over seeds [95% t-interval over seeds].",
            ),
        ],
        tiles=[_tile(rows) for rows in spaces[:3]],
        source=_SOURCE,
    )


def _lead(spaces: Sequence[Sequence[LearnedMapping]]) -> str:
    said = []
    for rows in spaces:
        space = rows[0].space
        every = len(rows) == space.objects**space.objects
        said.append(f"{'all' if every else ''} {len(rows)} of {space.label}".strip())
    seeds = len(spaces[0][0].area)
    return (
        "An object has m attributes of v values (written m×v), and a message as many letters. A "
        "mapping of objects to messages is compositional where every letter tells one attribute: "
        f"it has a short description. A small network learned {join(said)} mappings, each from "
        f"{seeds} different initial weights, all of a space at once."
    )


def _tile(rows: Sequence[LearnedMapping]) -> Tile:
    mean, low, high = mean_and_ends(difference(rows, "area"))
    return Tile(
        f"Δ area at {rows[0].space.label}",
        mean,
        f"nats [{low}, {high}]: compositional less holistic",
    )
