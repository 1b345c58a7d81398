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
    "other side; unclear: neither. What is said of every case fails by a single violation."
)


@dataclass(frozen=True)
class Chapter:
    """All that the page shows.

    `lead` says in a paragraph what was done; `content` are figures and tables in their order;
    `source` says whose claims they are and what the intervals are over.
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
    """Writes the page, which stands alone, `claims.jsonl`, and every figure in `figures/`.

    **Returns** how many claims end how, as `claims/<verdict>`.
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
        f"Of {len(verdicts)} claims {counts}." if verdicts else "Nothing is claimed here.",
        verdict_table("of", verdicts, words={}),
        note=f"{chapter.source} {_HOW_JUDGED}".strip(),
    )
