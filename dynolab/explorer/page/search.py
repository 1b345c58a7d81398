"""What the reader types: a part of a pair's or an answer's name or text, or any other answer."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from dash import Dash, Input, Output, State as Given, dcc, html, no_update

from dynolab.data.rows import ProbeRow
from dynolab.explorer.page import parts
from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from dynolab.report.style import excerpt

PAIR, ANSWER = "any-pair", "any-answer"
TYPED = "typed"
"""Name and kind of the answer."""

PROMPT, RESPONSE, LOOK = "typed-prompt", "typed-response", "typed-look"
LONGEST = 8000
"""Characters of each text: the address holds them."""

FOUND = 50
"""Entries that are offered at once; typing more finds the others."""


def any_pair(study: Study, state: State, label: str) -> Any:
    """Every training pair, in a batch of a recorded step or not."""
    return _drawn(PAIR, label, study, state, state.pair)


def any_answer(study: Study, state: State, label: str) -> Any:
    """Every watched answer of the kind."""
    return _drawn(ANSWER, label, study, state, "")


def fill(app: Dash, study: Study) -> None:
    """Finds what is typed, leads to what is chosen, and puts a typed answer into the address."""
    for name in (PAIR, ANSWER):
        app.callback(
            Output(name, "options"),
            Input(name, "search_value"),
            Given(name, "value"),
            Given("address", "search"),
            prevent_initial_call=True,
        )(lambda typed, value, search, name=name: _found(name, study, search, typed, value))

    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input(PAIR, "value"),
        Given("address", "search"),
        prevent_initial_call=True,
    )
    def choose_pair(pair: str | None, search: str | None) -> Any:
        state = State.of(search)
        unknown = not pair and state.pair not in study.pairs  # the field has no entry for it
        return no_update if unknown or pair == state.pair else state.link(pair=pair or "")

    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input(ANSWER, "value"),
        Given("address", "search"),
        prevent_initial_call=True,
    )
    def choose_answer(answer: str | None, search: str | None) -> Any:
        return State.of(search).link(view="answers", answer=answer) if answer else no_update

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
        return State.of(search).link(answer="", prompt=prompt or "", response=response, place=None)


def found(texts: Iterable[tuple[str, str]], typed: str, chosen: str) -> list[dict[str, str]]:
    """The first entries whose name or text holds what is typed, and the one that is chosen."""
    fragment = typed.casefold()
    texts = list(texts)
    matching = (
        texts_of
        for texts_of in texts
        if fragment in texts_of[0].casefold() or fragment in texts_of[1].casefold()
    )
    some = dict(islice(matching, FOUND)) | {name: text for name, text in texts if name == chosen}
    return [
        {"value": name, "label": f"{name}: {excerpt(text, 70)}", "search": f"{name} {text}"}
        for name, text in some.items()
    ]


def _found(
    name: str, study: Study, search: str | None, typed: str | None, chosen: str | None
) -> Any:
    state = State.of(search)
    if name == PAIR:
        texts = [(pair, row.prompt) for pair, row in study.pairs.items()]
    else:
        watched = study.training(state.training).answers.get(state.kind, ())
        texts = [(answer.row.pair_id, answer.row.prompt) for answer in watched]
    return found(texts, typed or "", chosen or "")


def _drawn(name: str, label: str, study: Study, state: State, chosen: str) -> Any:
    choice = dcc.Dropdown(
        id=name,
        options=_found(name, study, state.link(), "", chosen),
        value=chosen or None,
        placeholder="search by its id or prompt",
        optionHeight=48,
    )
    return html.Div(
        [html.Label(label, htmlFor=name, className="label"), choice], className="search"
    )


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


def typed_form() -> Any:
    """The fields for a prompt and an answer."""
    prompt = "Prompt, as training writes it"
    response = "Answer; begin with a space where training's answers do"
    fields = [
        dcc.Textarea(id=name, placeholder=words, maxLength=LONGEST, rows=3, title=words, dir="auto")
        for name, words in ((PROMPT, prompt), (RESPONSE, response))
    ]
    button = html.Button("Who pushes it?", id=LOOK)
    return html.Details([html.Summary("any other answer"), *fields, button], className="typed")


def typed_head(row: ProbeRow) -> Any:
    """What is looked at."""
    return html.Div(
        [
            html.H2("An answer of your own"),
            html.P("Training did not watch it; what recorded steps did to it is computed now."),
            parts.given(row.prompt),
        ]
    )
