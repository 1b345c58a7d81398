"""The table that sets every finding of the papers beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from dynolab.claims.reproduction import TITLES
from dynolab.claims.verdict import Verdict
from dynolab.report.page import Html, section
from dynolab.report.panels.verdict_table import PLURAL, counts_of, verdict_table


def reproduction_section(verdicts: Sequence[Verdict], unit: str) -> Html:
    """Every finding of the papers, its expected shape, what was measured, and the verdict."""
    return section(
        "reproduction",
        "The papers' findings on finetuning",
        f"Of {len(verdicts)} findings {counts_of(verdicts, PLURAL)}.",
        verdict_table("training", verdicts, named=lambda name: TITLES.get(name, name)),
        note="Findings and figures of Ren & Sutherland, Learning Dynamics of LLM Finetuning "
        "(arXiv 2407.10490), its authors' logs, and an independent rerun: shapes carry over to "
        "other models and data, numbers do not. Measured on training prompts, changes of log π in "
        f"nats; brackets hold 95% intervals over {unit}. Appears: every interval lies on the "
        "expected side; does not: one lies wholly on the other side; unclear: neither. A peak's "
        "step is chosen on the other half of the prompts. Extended SFT takes both answers of every "
        "pair in twice the steps, so that a chosen answer is seen as often and weighs as much as "
        "in SFT; half-weight extended SFT makes as many steps as SFT.",
    )
