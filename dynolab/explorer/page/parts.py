"""Small parts of the page. All texts of data are text nodes: nothing in them becomes markup."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go
from dash import dcc, html

from dynolab.report.style import DARK, SPLITS, number, style_of, visible_token
from dynolab.results.ledger import FunctionalRow

MARKS = 8
TOKENS = 1000  # of an answer that are drawn

Part = Any
"""A component of Dash, or a text."""

GRAPH: Any = {
    "responsive": True,
    "displaylogo": False,
    "displayModeBar": False,
    "showSendToCloud": False,
}


def link(text: Part, address: str, **attributes: Any) -> Part:
    """A link to another state of the page."""
    return dcc.Link(text, href=address, **attributes)


def nats(value: float, digits: int = 3) -> str:
    """A signed number of nats."""
    return number(value, digits, sign=True)


def forecast(value: float) -> str:
    """A forecast in nats; of one beyond first order (`within_room`) the direction alone.

    NaN where there is none.
    """
    if math.isnan(value):
        return "not known"
    return nats(value) if math.isfinite(value) else "up, beyond first order"


def choices(label: str, options: Iterable[tuple[str, str, bool]]) -> Part:
    """Links of which one is chosen: text, address, whether it is."""
    links = [
        link(text, address, className="choice chosen" if chosen else "choice")
        for text, address, chosen in options
    ]
    return html.Div([html.Span(label, className="label"), *links], className="choices")


def table(head: Sequence[str], rows: Sequence[Sequence[Part]], numeric: str) -> Part:
    """A table; `numeric` holds an `n` for each column of numbers.

    On a narrow screen each row is a card, with the columns' names beside its cells.
    """
    kinds = ["n" if place == "n" else "" for place in numeric]
    heads = [
        html.Th(text, className=kind, scope="col") for text, kind in zip(head, kinds, strict=True)
    ]
    body = [html.Tr([_cell(*cell) for cell in zip(row, kinds, head, strict=True)]) for row in rows]
    content = html.Table([html.Thead(html.Tr(heads)), html.Tbody(body)])
    return html.Div(content, className="table", tabIndex=0, role="group")


def _cell(content: Part, kind: str, column: str) -> Part:
    named: dict[str, Any] = {"data-column": column}
    return html.Td(content, className=kind, **named)


def steps(every: Sequence[int], chosen: int | None) -> Part:
    """The slider: all steps, left of 0, or one of them. Nothing between them can be chosen."""
    span = max(every[-1] / MARKS, 1.0)
    contiguous = list(every) == list(range(len(every)))
    before = -1 if contiguous else -round(span)
    marks, last = {before: "all"}, float(before)
    for step in every:
        labelled = step - last >= span
        if labelled or not contiguous:
            marks[step] = str(step) if labelled else ""
        last = step if labelled else last
    slider = dcc.Slider(
        id="step",
        min=before,
        max=every[-1],
        step=1 if contiguous else None,
        marks=marks,
        value=before if chosen is None else chosen,
        included=False,
        allow_direct_input=False,
    )
    return html.Div([html.Span("step", className="label"), slider], className="slider")


def listed(every: Sequence[int]) -> str:
    """A few of some steps."""
    some = ", ".join(map(str, every[:4]))
    return some if len(every) <= 4 else f"{some} … ({len(every)})"


def said(text: str, className: str = "") -> Part:
    """A text of the data, in the direction that it is read in."""
    return html.Span(text, className=className, dir="auto")


def given(text: str) -> Part:
    """A prompt as it was given."""
    return html.P(text, className="given", dir="auto")


def tokens(
    texts: Sequence[str], pushes: Sequence[float], addresses: Sequence[str], chosen: int | None
) -> Part:
    """The first tokens of an answer, coloured by what pushed them; each is a link."""
    largest = max(map(abs, pushes), default=0.0) or 1.0
    shown = zip(texts[:TOKENS], pushes[:TOKENS], addresses[:TOKENS], strict=True)
    spans: list[Part] = [
        link(
            visible_token(text),
            address,
            className="token chosen" if place == chosen else "token",
            title=f"{nats(push)} nats",
            style={
                "background": f"color-mix(in srgb, var({'--up' if push > 0 else '--down'}) "
                f"{45 * abs(push) / largest:.0f}%, transparent)"
            },
        )
        for place, (text, push, address) in enumerate(shown)
    ]
    left = len(texts) - len(spans)
    if left > 0:
        spans.append(html.Span(f" … {left:,} more tokens are not shown", className="note"))
    return html.P(spans, className="answer", dir="auto")


def graph(figure: go.Figure, dark: bool, name: str = "") -> Part:
    """A figure in the colours of the screen."""
    text = figure.to_json()
    for light, other in DARK.items() if dark else ():
        text = text.replace(f'"{light}"', f'"{other}"')
    room = {"height": figure.layout.height}  # from the start: what is below stays in its place
    drawn = dcc.Graph(figure=json.loads(text), config=GRAPH, className="plot", style=room)
    return html.Div(drawn, className=f"wide {name}".strip(), tabIndex=0, role="group")


def account_name(row: FunctionalRow) -> str:
    """What an account of the ledger is of."""
    kind = style_of(row.kind).label
    if row.single:
        return f"{row.name}, {kind}"
    return f"{kind}, {SPLITS[row.split]}, mean of {len(row.pairs)}"


def accounts(head: Sequence[str], rows: Sequence[Sequence[Part]]) -> list[Part]:
    """A table of the ledger's accounts: what each is of, and a number for each name of `head`."""
    return [
        html.H3("Over the whole training"),
        html.P(
            "From the ledger’s lines: means of a kind’s answers, and the answers that fell most.",
            className="note",
        ),
        table(("answers", *head), rows, "s" + "n" * len(head)),
    ]


def failed(error: Exception | None) -> Part:
    """What could not be shown, and why."""
    return None if error is None else html.P(str(error), className="failed", role="alert")


def copied(label: str, text: str) -> Part:
    """A text to copy."""
    return html.Div(
        [
            html.Div(
                [html.Span(label, className="label"), dcc.Clipboard(content=text, title="copy")],
                className="copy",
            ),
            html.Pre(text, tabIndex=0),
        ]
    )
