"""Data of the audit page, and of the report's sections on the audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dynolab.data.rows import Example
from dynolab.report.inputs.files import PageInputs, rows
from dynolab.results.audit import ChosenChange, Foresight, PairAudit


@dataclass(frozen=True)
class Audit:
    """The audited pairs with their texts, and what training then did, if known."""

    rows: tuple[PairAudit, ...]
    texts: Mapping[tuple[str, str], Example]
    changes: tuple[ChosenChange, ...] = ()
    foresight: tuple[Foresight, ...] = ()


@dataclass(frozen=True)
class AuditPageInputs(PageInputs):
    """Everything the page shows."""

    objective: str
    audit: Audit


def read_audit(data: Path, audit: Path, foresight: Path | None = None) -> Audit:
    """Reads the results of an audit, of its data, and of a foresight stage."""
    texts = {
        (split, row.id): row
        for split in ("train", "heldout")
        for row in rows(data, f"{split}.jsonl", Example)
    }
    return Audit(
        rows(audit, "audit.jsonl", PairAudit),
        texts,
        rows(foresight, "changes.jsonl", ChosenChange),
        rows(foresight, "foresight.jsonl", Foresight),
    )
