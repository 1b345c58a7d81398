"""The sections of a study's report on comparisons that ran beside it."""

from __future__ import annotations

from dynolab.report.inputs.compared import Compared
from dynolab.report.inputs.pairs import arm_table_of
from dynolab.report.page import Html, plate_section, section, table, text
from dynolab.report.pages.mitigation import remedy_plate
from dynolab.report.panels.mitigation_table import mitigation_table
from dynolab.report.panels.reproduction_table import reproduction_section


def compared_sections(compared: Compared) -> list[Html]:
    """The papers' findings, the remedies side by side, and how to get what is missing."""
    found = []
    if compared.findings:
        found.append(
            reproduction_section(compared.findings, "seeds, or prompts where there is one")
        )
    if compared.remedies is not None:
        figures = arm_table_of(compared.remedies)
        if plate := remedy_plate(compared.remedies, figures):
            found.append(plate_section(plate))
        found.append(mitigation_table(compared.remedies, figures))
    if compared.missing:
        rows = [
            (_MISSING.get(name, name), Html(f"<code>{text(command)}</code>"))
            for name, command in compared.missing.items()
        ]
        found.append(
            section(
                "missing",
                "What other runs add to this page",
                "These comparisons over several seeds have not run yet; after them this study, "
                "run again, shows what they found.",
                table(("comparison", "command"), rows),
            )
        )
    return found


_MISSING = {
    "mitigation": "remedies against squeezing, side by side",
    "reproduction": "the papers' findings on finetuning, each with its verdict",
}
