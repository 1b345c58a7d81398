"""The page of a chapter: what is claimed, what was measured, and the figures that show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plotly.offline import get_plotlyjs

from dynolab.claims.verdict import Outcome, Verdict
from dynolab.data.rows import write_rows
from dynolab.report.files import write_plates, write_text
from dynolab.report.inputs.study import StageFacts
from dynolab.report.page import Html, Tile, page, plate_section, section, text, tiles
from dynolab.report.pages.summary import outcome_counts
from dynolab.report.panels.sections import stage_section
from dynolab.report.panels.verdict_table import counts_of, verdict_table
from dynolab.report.style import Plate

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
    content: Sequence[Plate | Html]
    tiles: Sequence[Tile] = ()
    source: str = ""
    name: str = ""
    settings: str = ""
    stages: Sequence[StageFacts] = ()


def write_chapter(chapter: Chapter, folder: Path, file: str) -> dict[str, float]:
    """Writes the page, which stands alone, `claims.jsonl`, and every figure in `figures/`.

    **Returns** how many claims end how, as `claims/<verdict>`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plotly_js = get_plotlyjs()
    body = [
        Html(f"<header><h1>{text(chapter.title)}</h1>"),
        Html(f'<p class="lead">{text(chapter.lead)}</p>'),
        tiles([*chapter.tiles, _claims_tile(chapter.verdicts)]),
        Html("</header><main>"),
        claim_section(chapter),
        *(plate_section(part) if isinstance(part, Plate) else part for part in chapter.content),
        stage_section(chapter.stages),
        Html(
            '<section id="config"><details><summary>Settings</summary>'
            f"<pre>{text(chapter.settings)}</pre></details></section>"
        ),
        Html("<footer>Made by Dynolab. This page loads nothing from anywhere.</footer></main>"),
    ]
    write_text(folder / file, page(f"Dynolab: {chapter.name}", body, plotly_js))
    plates = [part for part in chapter.content if isinstance(part, Plate)]
    write_plates(plates, folder / "figures", plotly_js)
    write_rows(folder / "claims.jsonl", chapter.verdicts)
    return outcome_counts(chapter.verdicts, {})


def claim_section(chapter: Chapter) -> Html:
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


def _claims_tile(verdicts: Sequence[Verdict]) -> Tile:
    judged = [verdict for verdict in verdicts if verdict.outcome != "not measured"]
    hold = sum(verdict.outcome == "holds" for verdict in judged)
    rest = [verdict for verdict in judged if verdict.outcome != "holds"]
    return Tile(
        "Claims that hold",
        f"{hold} of {len(judged)}",
        counts_of(rest, _COUNTED) or ("all that were measured" if judged else "none was measured"),
    )
