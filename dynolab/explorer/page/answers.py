"""The view of answers: how far each fell, who pushed it, by which tokens.

Two trainings, or two steps of one, stand side by side: what each did to an answer, by which pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dash import html

from dynolab.data.rows import ProbeRow
from dynolab.errors import ConfigError
from dynolab.explorer.page import parts, search
from dynolab.explorer.page.lit import lit_lines
from dynolab.explorer.page.moved import (
    PER_TOKEN,
    Moved,
    answers_of,
    concentration,
    over_steps,
    pusher_tables,
    sentence,
    step_of_map,
    what_moved,
)
from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from dynolab.explorer.training import Training
from dynolab.explorer.watched import Answer, split_of
from dynolab.grouping import grouped
from dynolab.report.forces.token_map import READING, token_map_message
from dynolab.report.forces.token_map_plot import token_map_plot
from dynolab.report.style import SPLITS, excerpt, in_order, number, style_of, visible_token
from dynolab.results.ledger_reader import Pusher
from dynolab.results.study import TokenMap

SPLIT_CHOICES: dict[str, str] = {"all": "all", **{str(name): text for name, text in SPLITS.items()}}


def listed(study: Study, state: State) -> Any:
    """All watched answers of a kind, the one that fell most first."""
    training = study.training(state.training)
    shown = split_of(training.answers.get(state.kind, []), state.split)
    fallen = sum(answer.change < 0 for answer in shown)
    rows = [
        html.Li(
            parts.link(
                [
                    html.Span(parts.nats(answer.change), className="n"),
                    parts.said(excerpt(answer.row.prompt, 60), "prompt"),
                    parts.said(excerpt(answer.row.response, 80), "quiet"),
                ],
                state.link(answer=answer.row.pair_id),
            )
        )
        for answer in shown
    ]
    return [
        parts.choices(
            "pairs",
            [
                (text, state.link(split=split), state.split == split)
                for split, text in SPLIT_CHOICES.items()
            ],
        ),
        html.Details(
            [
                html.Summary(f"kind: {style_of(state.kind).label}"),
                parts.choices(
                    "",
                    [
                        (style_of(kind).label, state.link(kind=kind, answer=""), kind == state.kind)
                        for kind in in_order(training.answers)
                    ],
                ),
            ]
        ),
        html.P(f"{fallen} of {len(shown)} fell; Δ log π in nats", className="quiet"),
        html.Ul(rows, className="answers", tabIndex=0),
        search.typed_form(),
    ]


def shown(study: Study, state: State, dark: bool) -> Any:
    """The answer that was typed, or is chosen; by default the one that fell most."""
    training, row = study.training(state.training), search.typed_answer(state)
    if row is not None:
        head = search.typed_head(row)
    elif (answer := _chosen(training, state)) is not None:
        head, row = _head(answer), answer.row
        state = state.model_copy(update={"answer": row.pair_id})
    else:
        return html.P("No answer of this kind was watched.")
    recorded, error = training.computable()
    if compared := _sides(study, state):
        return [head, *_chooser(recorded, state), *_beside(study, row, compared, state)]
    moved = what_moved(training, row, state, recorded)
    if moved is None:
        return [head, parts.failed(error)]
    near, token_map = -1, None
    if recorded:
        near = step_of_map(recorded, moved.lines, state)
        if pair := study.pairs.get(state.pair):
            try:
                token_map = training.token_map(row, pair, near, state.asked)
            except ConfigError as refused:  # such as a pair that is longer than the context
                error = refused
    steps = training.ledger.steps if moved.stored and training.ledger else recorded
    return [
        head,
        parts.steps(steps, state.step),
        *_chooser(recorded, state),
        *(
            _tokens(training, row, near, token_map, state, {})
            if recorded
            else [html.P(row.response, className="answer", dir="auto")]  # without colours
        ),
        sentence(moved, state),
        parts.failed(error),
        search.any_pair(study, state, "its map of any pair") if recorded else None,
        *(_map(training, row, token_map, dark) if token_map else ()),
        *(_token_pushers(study, training, row, near, state) if recorded else ()),
        *over_steps(moved.lines, state.pair, dark),
        *concentration(moved.lines, dark),
        *pusher_tables(study, moved.lines, state),
    ]


def _chosen(training: Training, state: State) -> Answer | None:
    watched = training.answers.get(state.kind, [])
    named = [answer for answer in watched if answer.row.pair_id == state.answer]
    return next(iter(named or split_of(watched, state.split)), None)


def _head(answer: Answer) -> Any:
    row = answer.row
    return html.Div(
        [
            html.H2(f"{row.pair_id}: {parts.nats(answer.change)} nats"),
            html.P(
                f"Its {style_of(row.kind).label} answer, {SPLITS[row.split]}: log π went from "
                f"{number(answer.start, 4)} to {number(answer.end, 4)}."
            ),
            parts.given(row.prompt),
        ]
    )


def _tokens(
    training: Training,
    row: ProbeRow,
    step: int,
    token_map: TokenMap | None,
    state: State,
    changes: Mapping[str, Any],
) -> list[Any]:
    """The answer, coloured by the pair that is chosen, else by the whole batch of a step.

    **Arguments:** `changes`: of the state that a token leads to.
    """
    texts = training.token_texts(training.encoded(row))
    if token_map is None:
        pushes, by = training.token_pushes(row, step, state.asked).sum(1), "the whole batch"
    else:
        pushes, by = np.array(token_map.force).sum(1), token_map.updating_id
    addresses = [
        state.link(**changes, place=None if place == state.place else place)
        for place in range(len(texts))
    ]
    shown = "" if state.step is not None else " (tokens are computed at single steps)"
    return [
        parts.tokens(texts, pushes.tolist(), addresses, state.place),
        html.P(
            f"Colour: push by {by} at step {step}{shown}; green raises, brown lowers. "
            "Click a token for its pushers.",
            className="note",
        ),
    ]


def _token_pushers(
    study: Study, training: Training, row: ProbeRow, step: int, state: State
) -> list[Any]:
    """Who pushed the token that is chosen, at a recorded step."""
    if state.place is None:
        return []
    texts = training.token_texts(training.encoded(row))
    if state.place >= len(texts):
        return []
    lines = training.token_lines(row, state.place, step, state.asked)
    token = f"“{visible_token(texts[state.place])}”"
    return pusher_tables(study, lines, state, token, f" at step {step}", most=PER_TOKEN)


def _map(training: Training, row: ProbeRow, token_map: TokenMap, dark: bool) -> list[Any]:
    """The map of the pair that is chosen, token by token."""
    pair, step = token_map.updating_id, token_map.step
    assert step is not None
    batch = [example.id for example in training.record(step).examples]
    return [
        html.H3(f"{pair} on {row.pair_id}, token by token, at step {step}", id="map", tabIndex=-1),
        html.P(
            f"{pair} was not in the batch of step {step}, whose weights are recorded: it takes "
            "another pair’s place here. What it did at its own steps is in the table of pairs.",
            className="message",
        )
        if pair not in batch
        else None,
        html.P(token_map_message(token_map), className="message"),
        lit_lines(token_map),
        html.P(READING, className="note"),
        parts.graph(token_map_plot(token_map), dark),
    ]


_PAIRS = 12  # of a comparison


@dataclass(frozen=True)
class Side:
    """A training with the state that looks at it, or at one step of it."""

    label: str
    training: Training
    state: State


def _sides(study: Study, state: State) -> list[Side]:
    """Two trainings, or two steps of one; empty where the state names no second."""
    training = study.training(state.training)
    other = study.trainings.get(state.beside, training)
    if other is not training:
        return [Side(answer_shown.label, answer_shown, state) for answer_shown in (training, other)]
    if None in (state.step, state.step_beside) or state.step == state.step_beside:
        return []
    return [
        Side(f"step {step}", training, state.model_copy(update={"step": step, "step_beside": None}))
        for step in (state.step, state.step_beside)
    ]


def _chooser(recorded: Sequence[int], state: State) -> list[Any]:
    """Links that put another recorded step beside the one that is chosen."""
    others = [step for step in recorded if step != state.step]
    if state.step is None or not others:
        return []
    steps = [
        (str(step), state.link(beside="", step_beside=step), step == state.step_beside)
        for step in others
    ]
    none = ("none", state.link(step_beside=None), state.step_beside is None)
    return [parts.choices("beside step", [none, *steps])]


def _beside(study: Study, row: ProbeRow, compared: Sequence[Side], state: State) -> list[Any]:
    """An answer on both sides, and who pulled it down on either.

    Where one side has no ledger, both are looked at in recorded steps alone, if both have some.
    """
    steps = [side.training.computable() for side in compared]
    sides = list(zip(compared, steps, strict=True))
    moves = [what_moved(side.training, row, side.state, recorded) for side, (recorded, _) in sides]
    stored = [moved is not None and moved.stored for moved in moves]
    recorded_alone = any(stored) and not all(stored) and all(recorded for recorded, _ in steps)
    if recorded_alone:
        moves = [
            what_moved(side.training, row, side.state, recorded, ledger=False)
            for side, (recorded, _) in sides
        ]
    columns = []
    for (side, (recorded, error)), moved in zip(sides, moves, strict=True):
        column = _column(side, row, moved, recorded)
        columns.append(html.Div([*column, parts.failed(error)], className="column"))
    return [html.Div(columns, className="beside"), *_pairs(study, compared, moves, state)]


def _column(side: Side, row: ProbeRow, moved: Moved | None, recorded: Sequence[int]) -> list[Any]:
    account = [] if moved is None else [sentence(moved, side.state)]
    if moved is not None and recorded:
        step = step_of_map(recorded, moved.lines, side.state)
        state = side.state.model_copy(update={"place": None})
        alone = {"training": side.training.name, "beside": "", "step_beside": None}
        account += _tokens(side.training, row, step, None, state, alone)
    return [html.H3(side.label), *_values(side, row, recorded), *account]


def _values(side: Side, row: ProbeRow, recorded: Sequence[int]) -> list[Any]:
    """log π at both ends of the training, or of the step."""
    if side.state.step is None:
        watched = (
            answer_shown
            for answer_shown in side.training.answers.get(row.kind, ())
            if answer_shown.row == row
        )
        ends = [(answer.start, answer.end) for answer in watched]
    else:
        ends = (
            [side.training.log_probs(row, side.state.step)] if side.state.step in recorded else []
        )
    return [
        html.P(f"log π went from {number(start, 6)} to {number(end, 6)}: {change} nats.")
        for start, end in ends
        for change in (parts.nats(end - start),)
    ]


def _pairs(
    study: Study, compared: Sequence[Side], moves: list[Moved | None], state: State
) -> list[Any]:
    """The pairs that pulled hardest in one of both, with their pushes in each."""
    pushes: list[dict[str, Pusher]] = [
        {} if moved is None else {push.example: push for push in moved.lines.pushers(0)}
        for moved in moves
    ]
    heads = [
        f"{side.label}, {moved.extent(side.state)}" if moved else side.label
        for side, moved in zip(compared, moves, strict=True)
    ]
    totals = grouped((pair, push.total) for by_pair in pushes for pair, push in by_pair.items())
    hardest = sorted(totals, key=lambda pair: min(0.0, *totals[pair]))[:_PAIRS]
    rows = []
    for pair in hardest:
        nats = [parts.nats(by_pair[pair].total) if pair in by_pair else "–" for by_pair in pushes]
        answers = answers_of(study, pair)
        address = state.link(beside="", step_beside=None, pair=pair)
        rows.append([parts.link(pair, address, title="its map on this answer"), *nats, answers])
    return [
        html.H3("Who pulled it down, in one or the other"),
        html.P("Nats; – was in none of the steps that are looked at.", className="note"),
        parts.table(("pair", *heads, "its answers"), rows, "snns"),
    ]
