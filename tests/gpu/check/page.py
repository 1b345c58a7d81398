"""The page of a machine's checks, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from dynolab.report.page import Page, Section, Tile, page_html, section, table, write_text
from dynolab.report.text import number
from tests.gpu.check.outcome import Checked, Outcome, Verdict, count

MARKS: Mapping[Verdict, str] = {"met": "✓", "missed": "✗", "measured": "–", "not run": "–"}
CLASSES: Mapping[Verdict, str] = {"met": "appears", "missed": "does-not"}


def write(
    checked: Sequence[Checked], machine: Mapping[str, str], seconds: float, folder: Path
) -> None:
    """Writes `gpu.html` and `gpu.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "gpu.html", page_html(page(checked, machine, seconds)))
    verdicts = count(checked)
    whole = {
        "machine": dict(machine),
        "seconds": seconds,
        **{verdict.replace(" ", "_"): each for verdict, each in verdicts.items()},
        "checks": [each.model_dump(mode="json") for each in checked],
    }
    write_text(folder / "gpu.json", json.dumps(whole, indent=1) + "\n")


def page(checked: Sequence[Checked], machine: Mapping[str, str], seconds: float) -> Page:
    """Figures by check, each with its bound and verdict."""
    verdicts = count(checked)
    return Page(
        name="GPU check",
        heading="What the GPUs of this machine do",
        lead="Every figure is measured on this machine, beside the bound that the library relies "
        "on. Where there is no GPU, a pretended one or ranks on the CPU run the same programs; "
        "what they cannot tell is not run.",
        tiles=[
            Tile("Met", str(verdicts["met"]), "bounds"),
            Tile("Missed", str(verdicts["missed"]), "bounds"),
            Tile("Not run", str(verdicts["not run"]), "figures"),
            Tile("Time", f"{seconds / 60:.1f}", "minutes"),
        ],
        content=[*map(_section, checked), _machine(machine)],
    )


def _section(check: Checked) -> Section:
    verdicts = count([check])
    found = ", ".join(f"{each} {verdict}" for verdict, each in verdicts.items() if each)
    rows = [
        (
            outcome.figure.name,
            outcome.figure.means,
            outcome.figure.bound,
            f"{number(outcome.value)} {outcome.figure.unit}".strip(),
            outcome.place or "–",
            _verdict(outcome),
        )
        for outcome in check.outcomes
    ]
    head = ("figure", "what it is", "bound", "measured", "on", "verdict")
    return section(
        check.name,
        check.name,
        f"{check.asserts} {found[:1].upper()}{found[1:]}.",
        table(head, rows, "ssnnss"),
        note=f"Took {check.seconds:.0f} s.",
    )


def _verdict(outcome: Outcome) -> Markup:
    text = f"{outcome.verdict}: {outcome.reason}" if outcome.reason else outcome.verdict
    return Markup('<span class="verdict {}">{} {}</span>').format(
        CLASSES.get(outcome.verdict, ""), MARKS[outcome.verdict], text
    )


def _machine(machine: Mapping[str, str]) -> Section:
    return section(
        "machine",
        "The machine",
        "Versions and devices that the figures are of.",
        table(("what", "here"), list(machine.items()), "ss"),
    )
