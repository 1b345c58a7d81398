"""An answer that the reader types: any text, looked at as the watched answers are."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State as Given, dcc, html, no_update

from dynolab.data.rows import ProbeRow
from dynolab.explorer.page import parts
from dynolab.explorer.page.state import State

TYPED = "typed"
"""Name and kind of the answer."""

PROMPT, RESPONSE, LOOK = "typed-prompt", "typed-response", "typed-look"
LONGEST = 8000
"""Characters of each text: the address holds them."""


def typed_answer(state: State) -> ProbeRow | None:
    """The answer that the address holds; None without one."""
    if not state.response:
        return None
    return ProbeRow(
        pair_id=TYPED,
        split="heldout",
        kind=TYPED,
        prompt=state.prompt,
        response=state.response,
        made_by="the reader",
    )


def form() -> Any:
    """The fields for a prompt and an answer."""
    prompt = "Prompt, as training writes it"
    response = "Answer; begin with a space where training's answers do"
    fields = [
        dcc.Textarea(id=name, placeholder=words, maxLength=LONGEST, rows=3, title=words, dir="auto")
        for name, words in ((PROMPT, prompt), (RESPONSE, response))
    ]
    button = html.Button("Who pushes it?", id=LOOK)
    return html.Details([html.Summary("any other answer"), *fields, button], className="typed")


def fill(app: Dash) -> None:
    """Puts what was typed into the address."""

    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input(LOOK, "n_clicks"),
        Given(PROMPT, "value"),
        Given(RESPONSE, "value"),
        Given("address", "search"),
        prevent_initial_call=True,
    )
    def look(clicks: int | None, prompt: str | None, response: str | None, search: str) -> Any:
        if not clicks or not response:
            return no_update
        state = State.of(search)
        return state.link(answer="", prompt=prompt or "", response=response, place=None)


def head(row: ProbeRow) -> Any:
    """What is looked at."""
    return html.Div(
        [
            html.H2("An answer of your own"),
            html.P("Training did not watch it; what recorded steps did to it is computed now."),
            parts.given(row.prompt),
        ]
    )
