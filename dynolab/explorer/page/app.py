"""The page as an application: its frame, and the calls that fill it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, Patch, State as Given, dcc, html, no_update

from dynolab.errors import DynolabError
from dynolab.explorer.page import answers, export, pairs, parts, search, what_if
from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from dynolab.explorer.training import Training
from dynolab.report.style import join

POLL_MS = 1500
ASSETS = Path(__file__).with_name("assets")
MARK = """(search, _) => {
  const asked = new URLSearchParams(search);
  const name = asked.get("view") === "pairs" ? "pair" : "answer";
  requestAnimationFrame(() => document.querySelectorAll(".answers a").forEach((link) => {
    const own = new URLSearchParams(link.search).get(name) === asked.get(name);
    link.classList.toggle("chosen", own);
    if (own) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
  }));
  return null;
}"""
"""Marks the chosen entry of the list, which is not drawn anew for it."""

HERE = "(search) => location.origin + location.pathname + (search || '')"
DARK = "() => window.matchMedia('(prefers-color-scheme: dark)').matches"
FRAME = """<!DOCTYPE html>
<html lang="en"><head>{%metas%}<title>{%title%}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'self'; img-src 'self' data: blob:;
 style-src 'self' 'unsafe-inline'; script-src 'self' HASHES; object-src 'none'; base-uri 'none'">
<link rel="icon" href="data:,">{%css%}</head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body></html>"""
"""A page that loads nothing from elsewhere and runs the known scripts alone."""


def application(study: Study) -> Any:
    """The page of a study as an ASGI application."""
    app = Dash(
        __name__,
        backend="fastapi",
        assets_folder=str(ASSETS),
        title=f"Dynolab explorer: {study.name}",
        update_title="",  # the title stays
        suppress_callback_exceptions=True,
        eager_loading=True,  # else the first map waits for plotly.js
        add_log_handler=False,
    )
    app.layout = html.Div(
        [
            dcc.Location(id="address", refresh=False),
            dcc.Store(id="dark"),
            dcc.Store(id="listed"),
            dcc.Store(id="drawn"),
            dcc.Store(id="marked"),
            dcc.Interval(id="poll", interval=POLL_MS, disabled=True),
            html.A("to what is shown", href="#view", className="skip"),
            html.Header(
                [
                    html.H1("Explorer"),
                    html.P(f"{study.name} · {study.result}", className="quiet"),
                    html.Div(
                        ["link to this view", dcc.Clipboard(id="link", title="copy the link")],
                        className="copy quiet",
                    ),
                    html.Nav(id="navigation"),
                ]
            ),
            html.Main(
                [
                    html.Div(id="list", className="list"),
                    html.Div(
                        [
                            html.P(id="status", className="status", role="status"),
                            html.P(id="unknown", className="message", role="status"),
                            html.Div(id="view", tabIndex=-1),
                        ],
                        className="view",
                    ),
                ]
            ),
        ]
    )
    _fill(app, study)
    app.clientside_callback(DARK, Output("dark", "data"), Input("address", "pathname"))
    app.clientside_callback(
        MARK, Output("marked", "data"), Input("address", "search"), Input("list", "children")
    )
    app.clientside_callback(HERE, Output("link", "content"), Input("address", "search"))
    app.index_string = FRAME.replace("HASHES", " ".join(app.csp_hashes()))
    return app.server


def _fill(app: Dash, study: Study) -> None:
    here = Input("address", "search")

    @app.callback(Output("navigation", "children"), here)
    def navigation(search: str | None) -> Any:
        return _navigation(study, state_of(study, search))

    @app.callback(Output("unknown", "children"), here)
    def unknown(search: str | None) -> Any:
        absent = unknown_names(study, State.of(search))
        return f"This study has {join(absent)}." if absent else None

    @app.callback(
        Output("list", "children"),
        Output("listed", "data"),
        here,
        Input("poll", "disabled"),
        Given("listed", "data"),
    )
    def listed(search: str | None, done: bool, before: str | None) -> Any:
        state = state_of(study, search)
        waits = state.view == "pairs" and not done
        if waits and pairs.stored_pushes(study.training(state.training), state) is not None:
            waits = False  # the ledger's list is there, and stays
        what = state.list_link() + ("&waits" if waits else "")
        if what == before:  # drawn anew, it takes longer than all else and loses the focus
            return no_update, no_update
        lists = {"answers": answers.listed, "pairs": pairs.listed, "what-if": what_if.listed}
        return lists[state.view](study, State.of(what)), what

    @app.callback(
        Output("view", "children"),
        Output("poll", "disabled"),
        Output("drawn", "data"),
        here,
        Input("dark", "data"),
        Input("poll", "n_intervals"),
        Given("drawn", "data"),
        running=[(Output("status", "children"), "computing …", "")],
    )
    def view(search: str | None, dark: bool | None, _: int | None, drawn: str | None) -> Any:
        if dark is None:
            return no_update, no_update, no_update
        state = state_of(study, search)
        training = study.training(state.training)
        try:
            if state.view == "answers":
                shown = answers.shown(study, state, dark)
                training.background.ahead((state.kind, state.metric), _ahead(study, state))
                return shown, True, search
            waiting = _waiting(study, training, state)
            if waiting is not None and drawn == search:
                progress = Patch()  # what else is shown stays, and keeps the focus
                progress[0] = waiting
                return progress, False, search
            computed = waiting is None
            if state.view == "pairs":
                parts_shown = pairs.shown(study, state, computed=computed)
            else:
                parts_shown = what_if.shown(study, state, dark, computed=computed)
            return [waiting, *parts_shown], computed, search
        except DynolabError as error:
            return parts.failed(error), True, search

    @app.callback(
        Output(export.DOWNLOAD, "data"),
        Input(export.FILE, "n_clicks"),
        Given("address", "search"),
        prevent_initial_call=True,
    )
    def download(clicks: int | None, search: str | None) -> Any:
        if not clicks:
            return no_update
        name, text = export.filtered(study, state_of(study, search))
        return {"filename": name, "content": text}

    @app.callback(
        Output("address", "search"),
        Input("step", "value"),
        Given("address", "search"),
        prevent_initial_call=True,
    )
    def choose_step(value: int | None, search: str | None) -> Any:
        state = State.of(search)
        step = None if value is None or value < 0 else value  # left of 0 are all steps
        return no_update if step == state.step else state.link(step=step, place=None)

    search.fill(app, study)


def state_of(study: Study, search: str | None) -> State:
    """The state that an address names, without pairs to leave out that the study has not."""
    state = State.of(search)
    pairs = tuple(pair for pair in state.without if pair in study.pairs)
    return state.model_copy(update={"without": pairs})


def unknown_names(study: Study, state: State) -> list[str]:
    """What the address names and the study has not, such as a pair."""
    training = study.training(state.training)
    answers = [answer.row.pair_id for answer in training.answers.get(state.kind, ())]
    steps = [*training.recorded_steps, *(training.ledger.steps if training.ledger else ())]
    initial = State()
    checked: list[tuple[str, Sequence[object], Collection[object]]] = [
        ("training", [state.training, state.beside], {initial.training, "", *study.trainings}),
        ("kind", [state.kind], {initial.kind, *training.answers}),
        ("watched answer", [state.answer], {"", *answers}),
        ("pair", [state.pair, *state.without], {"", *study.pairs}),
        ("step", [state.step, state.step_beside], {None, *steps}),
    ]
    absent = []
    for what, names, choices in checked:
        absent += [f"no {what} {name}" for name in names if name not in choices]
    return absent


def _navigation(study: Study, state: State) -> Any:
    chosen = study.training(state.training)
    others = [training for training in study.trainings.values() if training is not chosen]
    metrics = [("the optimizer's step", "optimizer"), ("a gradient step", "gradient")]
    views = [("answers", "answers"), ("pairs", "pairs"), ("what-if", what_if.title(state))]
    offered = [
        parts.choices(
            "", [(text, state.link(view=view), view == state.view) for view, text in views]
        ),
        parts.choices(
            "training",
            [
                (training.label, state.link(training=name, step=None), training is chosen)
                for name, training in study.trainings.items()
            ],
        ),
    ]
    if others and state.view == "answers":
        named = [("none", ""), *((training.label, training.name) for training in others)]
        offered.append(
            parts.choices(
                "beside",
                [(text, state.link(beside=name), state.beside == name) for text, name in named],
            )
        )
    return [
        *offered,
        parts.choices(
            "metric",
            [(text, state.link(metric=name), state.metric == name) for text, name in metrics],
        ),
    ]


def _ahead(study: Study, state: State) -> Iterator[Callable[[], object]]:
    """What later clicks ask for: lines to all answers of the kind, first of the training shown."""
    shown = study.training(state.training)
    for training in sorted(study.trainings.values(), key=lambda training: training is not shown):
        if state.kind in training.answers:
            for step in training.computable()[0]:
                yield partial(training.lines, step, state.kind, state.asked)


def _waiting(study: Study, training: Training, state: State) -> Any:
    """How far the lines to all answers are; None if they are all there."""
    steps, _ = training.computable()
    questions = {state.asked}
    if state.view == "what-if":
        questions.add(state.changed(training))
    due = sum(training.begin(state.kind, question, steps) for question in questions)
    every = len(steps) * len(questions)
    if state.view == "pairs" and (replacing := pairs.replacing(study, state)) is not None:
        pair, step = replacing
        due += training.begin(state.kind, state.asked, [step], pair)
        every += 1
    if not due:
        return None
    count = len(training.answers.get(state.kind, ()))
    return html.P(
        f"Computing what the recorded steps did to all {count} answers: {every - due} of "
        f"{every} steps are done. This is kept, and done once.",
        role="status",
    )
