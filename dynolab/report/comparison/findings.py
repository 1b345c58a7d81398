"""The papers' findings in a section, of verdicts that a comparison of trainings wrote."""

from __future__ import annotations

from collections.abc import Sequence

from dynolab.claims.verdict import Verdict
from dynolab.report.page import Section, Words
from dynolab.report.tables import verdict_table
from dynolab.results.arms import TITLES


def findings_section(verdicts: Sequence[Verdict], unit: str) -> Section:
    """The papers' findings: expected shape, measurement and verdict; `unit`: of the intervals."""
    words = Words("findings.html", verdicts=verdicts, unit=unit)
    named = verdict_table("training", verdicts, named=lambda name: TITLES.get(name, name))
    return words.section("reproduction", named)
