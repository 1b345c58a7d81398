"""The page of a chapter: what is claimed, what was measured, and the figures that show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynolab.claims.verdict import Outcome, Verdict
from dynolab.data.rows import write_rows
from dynolab.report.figure import Figure
from dynolab.report.inputs.files import StageFacts
from dynolab.report.page import Page, Section, Tile, section, write_page
from dynolab.report.verdicts import claims_tile, counts_of, outcome_counts, verdict_table

_COUNTED: Mapping[Outcome, str] = {"holds": "hold", "fails": "fail"}
_HOW_JUDGED = (
    "Holds: every interval lies on the expected side of its bound; fails: one lies wholly on the "
    "other side; unclear: neither. A claim about every case fails if one case violates it."
)


@dataclass(frozen=True)
class Chapter:
    """Everything the page shows.

    `lead`: a paragraph on what was done; `content`: figures and tables in order; `source`: who made
    the claims, and what the intervals are over.
    """

    title: str
    lead: str
    verdicts: Sequence[Verdict]
    content: Sequence[Figure | Section | None]
    tiles: Sequence[Tile] = ()
    source: str = ""
    name: str = ""
    settings: str = ""
    stages: Sequence[StageFacts] = ()


def write_chapter(chapter: Chapter, folder: Path, file: str) -> dict[str, float]:
    """Writes the self-contained page, `claims.jsonl`, and every figure in `figures/`.

    **Returns** the number of claims by verdict, as `claims/<verdict>`.
    """
    page = Page(
        name=chapter.name,
        heading=chapter.title,
        lead=chapter.lead,
        tiles=[*chapter.tiles, claims_tile("Claims that hold", chapter.verdicts, _COUNTED)],
        content=[claim_section(chapter), *chapter.content],
        settings=chapter.settings,
        stages=chapter.stages,
    )
    write_page(page, folder, file)
    write_rows(folder / "claims.jsonl", chapter.verdicts)
    return outcome_counts(chapter.verdicts, {})


def claim_section(chapter: Chapter) -> Section:
    """The verdict table: claim → measured → holds, fails or unclear."""
    verdicts = chapter.verdicts
    counts = counts_of(verdicts, _COUNTED)
    return section(
        "claims",
        "What holds",
        f"Of {len(verdicts)} claims, {counts}." if verdicts else "This chapter makes no claims.",
        verdict_table("about", verdicts, words={}),
        note=f"{chapter.source} {_HOW_JUDGED}".strip(),
    )
