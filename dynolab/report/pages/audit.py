"""The page of an audit: what preference pairs would do, before any training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plotly.offline import get_plotlyjs

from dynolab.report.files import write_plates, write_text
from dynolab.report.inputs.audit import Audit
from dynolab.report.inputs.study import StageFacts
from dynolab.report.page import Html, Tile, page, plate_section, text, tiles
from dynolab.report.panels.audit import agreement_plate, pull_plate, worst_section
from dynolab.report.panels.foresight import foreseen_plate, foresight_section
from dynolab.report.panels.sections import stage_section
from dynolab.report.style import Plate, number, objective_name


@dataclass(frozen=True)
class AuditPageInputs:
    """All that the page shows."""

    name: str
    objective: str
    audit: Audit
    settings: str = ""
    stages: tuple[StageFacts, ...] = ()


def write_audit_page(inputs: AuditPageInputs, folder: Path) -> None:
    """Writes `audit.html`, which stands alone, and every figure as a file in `figures/`."""
    audit = inputs.audit
    made = pull_plate(audit), agreement_plate(audit.rows), foreseen_plate(audit)
    plates: list[Plate] = [plate for plate in made if plate is not None]
    folder.mkdir(parents=True, exist_ok=True)
    plotly_js = get_plotlyjs()
    body = [
        Html(f"<header><h1>{text(inputs.name)}</h1>{_lead(inputs).markup}"),
        tiles(_tiles(inputs)),
        Html("</header><main>"),
        *([foresight_section(audit.foresight)] if audit.foresight else []),
        *map(plate_section, plates),
        worst_section(audit, "force"),
        worst_section(audit, "from_all"),
        stage_section(inputs.stages),
        Html(
            '<section id="config"><details><summary>Settings</summary>'
            f"<pre>{text(inputs.settings)}</pre></details></section>"
        ),
        Html("<footer>Made by Dynolab. This page loads nothing from anywhere.</footer></main>"),
    ]
    write_text(folder / "audit.html", page(f"Dynolab: {inputs.name}", body, plotly_js))
    write_plates(plates, folder / "figures", plotly_js)


def _lead(inputs: AuditPageInputs) -> Html:
    rows = inputs.audit.rows
    held = sum(row.split == "heldout" for row in rows)
    beside = f", {held} held-out ones beside them" if held else ""
    return Html(
        '<p class="lead">'
        + text(
            f"What {len(rows) - held} preference pairs would do to their chosen answers under "
            f"{objective_name(inputs.objective)}{beside}, before training on them. First-order "
            "changes of log-probability by a gradient step of learning rate one, in nats: read "
            "them as proportions."
        )
        + "</p>"
    )


def _tiles(inputs: AuditPageInputs) -> list[Tile]:
    rows = [row for row in inputs.audit.rows if row.split == "train"]

    def share(what: str, count: int, detail: str) -> Tile:
        return Tile(what, f"{count} of {len(rows)}", detail)

    pull = sum(row.pull_up for row in rows)
    push = sum(row.push_down for row in rows)
    return [
        share(
            "Lowered by its own pair",
            sum(row.force < 0 for row in rows),
            "chosen answers: the push down outweighs",
        ),
        share(
            "Lowered by all pairs",
            sum(row.from_all < 0 for row in rows),
            "chosen answers, under a step on all training pairs",
        ),
        share(
            "Pairs that lower the others",
            sum(row.on_all < 0 for row in rows),
            "their step lowers chosen answers on average",
        ),
        Tile(
            "Push down per pull up",
            number(-push / pull if pull else None, 2),
            "of a pair on its own chosen answer, means",
        ),
    ]
