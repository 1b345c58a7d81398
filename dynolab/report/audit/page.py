"""The page of an audit: what preference pairs would do, before any training."""

from __future__ import annotations

from pathlib import Path

from dynolab.report.audit.foresight import foreseen_figure, foresight_section
from dynolab.report.audit.pairs import agreement_figure, pull_figure, worst_section
from dynolab.report.inputs.audit import Audit, AuditPageInputs
from dynolab.report.page import Page, Tile, write_page
from dynolab.report.style import objective_name
from dynolab.report.text import join, number

_NAMED = 3  # pairs in the answer
_FOREIGN = -4.0  # nats a token, a perplexity of 55


def write_audit_page(inputs: AuditPageInputs, folder: Path) -> None:
    """Writes the self-contained `audit.html`, and every figure as a file in `figures/`."""
    audit = inputs.audit
    page = Page(
        name=inputs.name,
        heading="Which pairs would pull chosen answers down?",
        answer=_answer(inputs.audit),
        lead=_lead(inputs),
        tiles=_tiles(inputs),
        content=[
            foresight_section(audit.foresight) if audit.foresight else None,
            worst_section(audit, "on_all"),
            worst_section(audit, "from_all"),
            foreseen_figure(audit),
            pull_figure(audit),
            worst_section(audit, "force"),
            agreement_figure(audit.rows),
        ],
        settings=inputs.settings,
        stages=inputs.stages,
    )
    write_page(page, folder, "audit.html")


def _answer(audit: Audit) -> list[str]:
    """How many chosen answers a step on all pairs lowers, and which pairs lower the others most."""
    rows = [row for row in audit.rows if row.split == "train"]
    lowered = sum(row.from_all < 0 for row in rows)
    sentences = [
        f"A step on all {len(rows)} training pairs would lower {lowered} of their chosen answers."
    ]
    harmful = sorted((row for row in rows if row.on_all < 0), key=lambda row: row.on_all)
    if harmful:
        named = join([row.pair_id for row in harmful[:_NAMED]])
        sentences.append(
            f"The steps of {len(harmful)} of them would lower chosen answers on average, those of "
            f"{named} most."
        )
    token = sum(row.chosen_logp for row in rows) / sum(row.chosen_tokens for row in rows)
    if token < _FOREIGN:
        sentences.insert(
            0,
            f"The model finds these answers foreign ({number(token)} nats a token, less than "
            f"{number(_FOREIGN)}): if it is to be finetuned on them first, begin with a study, or "
            "audit the finetuned model; all of the following is of this model, and will differ.",
        )
    return sentences


def _lead(inputs: AuditPageInputs) -> str:
    rows = inputs.audit.rows
    held = sum(row.split == "heldout" for row in rows)
    beside = f", with {held} held-out pairs beside them" if held else ""
    return (
        f"What {len(rows) - held} preference pairs would do to their chosen answers under "
        f"{objective_name(inputs.objective)}{beside}, before training on them. First-order "
        "changes of log-probability by a gradient step with learning rate one, in nats: read "
        "them as proportions."
    )


def _tiles(inputs: AuditPageInputs) -> list[Tile]:
    rows = [row for row in inputs.audit.rows if row.split == "train"]
    lowered = (
        (
            "Lowered by its own pair",
            sum(row.force < 0 for row in rows),
            "chosen answers: the push down outweighs the pull up",
        ),
        (
            "Lowered by all pairs",
            sum(row.from_all < 0 for row in rows),
            "chosen answers, under a step on all training pairs",
        ),
        (
            "Pairs that lower the others",
            sum(row.on_all < 0 for row in rows),
            "their step lowers chosen answers on average",
        ),
    )
    pull, push = sum(row.pull_up for row in rows), sum(row.push_down for row in rows)
    ratio = number(-push / pull if pull else None, 2)
    return [
        *(Tile(what, f"{count} of {len(rows)}", detail) for what, count, detail in lowered),
        Tile("Push down per pull up", ratio, "on a pair’s own chosen answer, means over pairs"),
    ]
