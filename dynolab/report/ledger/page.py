"""The account of a training: as parts of any page, and as a page of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dynolab.report.figure import Figure
from dynolab.report.forces.token_map import hardest_pull_figure
from dynolab.report.inputs.files import StageFacts
from dynolab.report.inputs.ledger import Ledger
from dynolab.report.ledger.blocks import blocks_figure
from dynolab.report.ledger.heat_map import ledger_map_figure
from dynolab.report.ledger.pullers import puller_section
from dynolab.report.ledger.pushers import pusher_section
from dynolab.report.ledger.sources import sources_figure
from dynolab.report.ledger.steps import step_figure
from dynolab.report.ledger.waterfall import waterfall_figure
from dynolab.report.page import Page, Section, Tile, write_page
from dynolab.report.text import number


def ledger_parts(ledger: Ledger) -> list[Figure | Section | None]:
    """Sums by source, who pulled single answers down and when, who pushed when, and through which
    weights.

    The papers' measures stand below.
    """
    return [
        waterfall_figure(ledger),
        pusher_section(ledger),
        puller_section(ledger),
        hardest_pull_figure(ledger.token_map) if ledger.token_map else None,
        step_figure(ledger),
        ledger_map_figure(ledger),
        blocks_figure(ledger),
        sources_figure(ledger),
    ]


def write_ledger_page(
    ledger: Ledger, name: str, settings: str, stages: Sequence[StageFacts], folder: Path
) -> None:
    """Writes the self-contained `ledger.html`, and every figure as a file in `figures/`."""
    summary = ledger.summary
    closes = Tile(
        "Closes to",
        number(summary.closure, 2),
        "of the path’s length: lines, decay and residual against the measured change",
    )
    misses = Tile(
        "Estimate misses",
        number(summary.closure, 2),
        f"of the path’s length at most, from one step of {summary.every}",
    )
    page = Page(
        name=name,
        lead="What every response of a training did to the watched answers, from its step to the "
        "end of training, in nats of log-probability. "
        + (
            "Steps were drawn: sums by side are estimates for the whole training with intervals, "
            "those of single examples are of the drawn steps alone."
            if ledger.sampled
            else "The lines add up to what was measured."
        ),
        tiles=[
            Tile("Steps", str(summary.steps), f"{summary.responses} responses"),
            misses if ledger.sampled else closes,
            Tile(
                "Not explained",
                number(summary.residual_share, 2),
                "of the path’s length at most: what the first order leaves",
            ),
        ],
        content=ledger_parts(ledger),
        settings=settings,
        stages=stages,
    )
    write_page(page, folder, "ledger.html")
