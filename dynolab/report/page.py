"""HTML of a report. Text of others is escaped; a policy lets no script run but the page's own."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dynolab.report.assets import SCRIPT, STYLE
from dynolab.report.style import DARK, Plate


@dataclass(frozen=True)
class Html:
    """Markup made by this package; everything else is text and gets escaped."""

    markup: str


@dataclass(frozen=True)
class Tile:
    """A headline number."""

    what: str
    value: str
    detail: str


def text(value: object) -> str:
    """Markup of a value: text is shown as it is, never obeyed."""
    return value.markup if isinstance(value, Html) else html.escape(str(value))


def excerpt(value: str, limit: int = 160, *, end: bool = False) -> str:
    """As much of a text as a table has room for: its start, or with `end` its end."""
    words = " ".join(value.split())
    if len(words) <= limit:
        return words
    return f"[…] {words[-limit:]}" if end else f"{words[:limit]} […]"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], numeric: str = "") -> Html:
    """A table; `numeric` holds an `n` for each column of numbers and any other letter elsewhere."""

    def cells(tag: str, values: Sequence[object]) -> str:
        kinds = [' class="n"' if mark == "n" else "" for mark in numeric.ljust(len(values))]
        return "".join(
            f"<{tag}{kind}>{text(value)}</{tag}>" for kind, value in zip(kinds, values, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return Html(
        f'<div class="table"><table><thead><tr>{cells("th", head)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def tiles(found: Iterable[Tile]) -> Html:
    """Headline numbers, four in a row."""
    return Html(
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><span class="what">{text(tile.what)}</span>'
            f"<b>{text(tile.value)}</b><span>{text(tile.detail)}</span></div>"
            for tile in found
        )
        + "</div>"
    )


def section(name: str, title: str, message: str, *content: Html, note: str = "") -> Html:
    """A part of the page: what it is, what it says, the thing itself, how to read it."""
    return Html(
        f'<section id="{text(name)}"><h2>{text(title)}</h2><p class="message">{text(message)}</p>'
        + "".join(part.markup for part in content)
        + (f'<p class="note">{text(note)}</p>' if note else "")
        + "</section>"
    )


def plot(plate: Plate) -> Html:
    """A figure's place and its data. In JSON `<` is written as an escape: no tag can end it."""
    data = data_block(f"data-plot-{plate.name}", plate.figure.to_json())
    height = plate.figure.layout.height or 400
    label = html.escape(f"{plate.title}. {plate.message}")
    return Html(
        f'<div class="plot" id="plot-{plate.name}" style="min-height: {height}px" role="img" '
        f'aria-label="{label}"></div>{data.markup}'
    )


def plate_section(plate: Plate) -> Html:
    """A figure with its sentence above and its reading below."""
    return section(plate.name, plate.title, plate.message, plot(plate), note=plate.note)


def data_block(name: str, content: str) -> Html:
    """JSON that the page's script reads."""
    safe = content.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Html(f'<script type="application/json" id="{name}">{safe}</script>')


def page(title: str, body: Iterable[Html], plotly_js: str) -> str:
    """A page that stands alone: plotly.js inside, nothing loaded, only two known scripts run."""
    scripts = "".join(f"<script>{script}</script>" for script in (plotly_js, SCRIPT))
    allowed = " ".join(f"'sha256-{_sha256(script)}'" for script in (plotly_js, SCRIPT))
    return _document(title, body, allowed, scripts)


def page_beside(title: str, body: Iterable[Html], plotly_file: str) -> str:
    """A page that takes plotly.js from a file in its own folder."""
    scripts = f'<script src="{html.escape(plotly_file)}"></script><script>{SCRIPT}</script>'
    return _document(title, body, f"'self' file: 'sha256-{_sha256(SCRIPT)}'", scripts)


def _document(title: str, body: Iterable[Html], allowed: str, scripts: str) -> str:
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
        f"<title>{text(title)}</title><style>{STYLE}</style></head><body>"
        + "".join(part.markup for part in body)
        + "<noscript><p>The figures need JavaScript; texts and tables do not.</p></noscript>"
        + data_block("dark-colors", json.dumps(DARK)).markup
        + scripts
        + "</body></html>\n"
    )


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
