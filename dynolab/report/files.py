"""Figures as files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dynolab.report.page import Html, page_beside, plate_section
from dynolab.report.style import Plate


def write_text(path: Path, content: str) -> None:
    """Writes text as it is on every system."""
    path.write_text(content, encoding="utf-8", newline="\n")


def write_plates(plates: Sequence[Plate], folder: Path, plotly_js: str) -> None:
    """Writes `<name>.html` and `<name>.json` of every figure, beside one `plotly.min.js`."""
    folder.mkdir(exist_ok=True)
    write_text(folder / "plotly.min.js", plotly_js)
    for plate in plates:
        write_text(folder / f"{plate.name}.json", plate.figure.to_json())
        body = [Html("<main>"), plate_section(plate), Html("</main>")]
        write_text(folder / f"{plate.name}.html", page_beside(plate.title, body, "plotly.min.js"))
