"""The ledger of a training: as parts of any page, and as a page of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dynolab.report.figure import Figure
from dynolab.report.forces.token_map import hardest_pull_figure
from dynolab.report.inputs.files import StageFacts
from dynolab.report.ledger.fallen import fallen_figure, pusher_section
from dynolab.report.ledger.maps import blocks_figure, ledger_map_figure
from dynolab.report.ledger.sources import sources_section
from dynolab.report.ledger.waterfall import waterfall_figure
from dynolab.report.page import Page, Section, Words, write_page
from dynolab.results.ledger import LedgerReader


def ledger_parts(ledger: LedgerReader) -> list[Figure | Section | None]:
    """Who pulled single answers down, sums by cause and by source of the data, who pushed when,
    through which weights."""
    return [
        fallen_figure(ledger),
        pusher_section(ledger),
        hardest_pull_figure(ledger.token_map) if ledger.token_map else None,
        waterfall_figure(ledger),
        sources_section(ledger),
        ledger_map_figure(ledger),
        blocks_figure(ledger),
    ]


def write_ledger_page(
    ledger: LedgerReader, name: str, settings: str, stages: Sequence[StageFacts], folder: Path
) -> None:
    """Writes the self-contained `ledger.html`, and every figure as a file in `figures/`."""
    words = Words("ledger.html", ledger=ledger, summary=ledger.summary)
    page = Page(
        name=name,
        answer=words.lines("answer"),
        lead=words("lead"),
        content=ledger_parts(ledger),
        settings=settings,
        stages=stages,
    )
    write_page(page, folder, "ledger.html")
