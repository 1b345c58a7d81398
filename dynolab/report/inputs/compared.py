"""What a study's report is given of comparisons that ran beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dynolab.claims.verdict import Verdict
from dynolab.data.rows import read_rows, read_value
from dynolab.results.arms import ComparedArms


@dataclass(frozen=True)
class Compared:
    """Comparisons over several seeds, in runs of their own.

    `remedies` against squeezing; `findings`, the papers' claims; `missing` are commands that run
    what has not been run, by what they compare.
    """

    remedies: ComparedArms | None = None
    findings: tuple[Verdict, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)


def read_compared(
    mitigation: Path | None, reproduction: Path | None, *, missing: Mapping[str, str]
) -> Compared:
    """Reads the results of the comparisons' pages, where there are any."""
    rows = read_rows(reproduction / "verdicts.jsonl", Verdict) if reproduction else ()
    return Compared(
        remedies=read_value(mitigation / "comparison.json", ComparedArms) if mitigation else None,
        findings=tuple(rows),
        missing=missing,
    )
