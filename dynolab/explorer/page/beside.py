"""Two trainings, or two steps of one, side by side: what each did to an answer, by which pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dash import html

from dynolab.data.rows import ProbeRow
from dynolab.explorer.page import parts
from dynolab.explorer.page.moved import Moved, answers_of, sentence, step_of_map, what_moved
from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from dynolab.explorer.training import Training
from dynolab.grouping import grouped
from dynolab.report.style import number
from dynolab.results.ledger import Pusher

SHOWN = 12


@dataclass(frozen=True)
class Side:
    """A training with the state that looks at it, or at one step of it."""

    label: str
    training: Training
    state: State


def sides(study: Study, state: State) -> list[Side]:
    """Two trainings, or two steps of one; empty where the state names no second."""
    training = study.training(state.training)
    other = study.trainings.get(state.beside, training)
    if other is not training:
        return [Side(own.label, own, state) for own in (training, other)]
    if None in (state.step, state.step_beside) or state.step == state.step_beside:
        return []
    return [
        Side(f"step {step}", training, state.model_copy(update={"step": step, "step_beside": None}))
        for step in (state.step, state.step_beside)
    ]


def chooser(recorded: Sequence[int], state: State) -> list[Any]:
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


def shown(study: Study, row: ProbeRow, compared: Sequence[Side], state: State) -> list[Any]:
    """An answer on both sides, and who pulled it down on either."""
    moves, columns = [], []
    for side in compared:
        recorded, error = side.training.computable()
        moved = what_moved(side.training, row, side.state, recorded)
        column = _column(side, row, moved, recorded)
        columns.append(html.Div([*column, parts.failed(error)], className="column"))
        moves.append(moved)
    return [html.Div(columns, className="beside"), *_pairs(study, compared, moves, state)]


def _column(side: Side, row: ProbeRow, moved: Moved | None, recorded: Sequence[int]) -> list[Any]:
    account = [] if moved is None else [sentence(moved, side.state)]
    if moved is not None and recorded:
        step = step_of_map(recorded, moved.lines, side.state)
        account += _tokens(side.training, row, step, side.state)
    return [html.H3(side.label), *_values(side, row, recorded), *account]


def _values(side: Side, row: ProbeRow, recorded: Sequence[int]) -> list[Any]:
    """log π at both ends of the training, or of the step."""
    if side.state.step is None:
        watched = (own for own in side.training.answers.get(row.kind, ()) if own.row == row)
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


def _tokens(training: Training, row: ProbeRow, step: int, state: State) -> list[Any]:
    """The answer, coloured by the whole batch of a recorded step."""
    texts = training.token_texts(training.encoded(row))
    pushes = training.token_pushes(row, step, state.asked).sum(1).tolist()
    addresses = [
        state.link(training=training.name, beside="", step_beside=None, place=place)
        for place in range(len(texts))
    ]
    note = f"Colour: push by the whole batch at step {step}; green raises, brown lowers."
    return [parts.tokens(texts, pushes, addresses, None), html.P(note, className="note")]


def _pairs(
    study: Study, compared: Sequence[Side], moves: list[Moved | None], state: State
) -> list[Any]:
    """The pairs that pulled hardest in one of both, with their pushes in each."""
    pushes: list[dict[str, Pusher]] = [
        {} if moved is None else {push.example: push for push in moved.lines.pushers(0)}
        for moved in moves
    ]
    totals = grouped((pair, push.total) for by_pair in pushes for pair, push in by_pair.items())
    hardest = sorted(totals, key=lambda pair: min(0.0, *totals[pair]))[:SHOWN]
    rows = []
    for pair in hardest:
        nats = [parts.nats(by_pair[pair].total) if pair in by_pair else "–" for by_pair in pushes]
        answers = answers_of(study, pair)
        address = state.link(beside="", step_beside=None, pair=pair)
        rows.append([parts.link(pair, address, title="its map on this answer"), *nats, answers])
    return [
        html.H3("Who pulled it down, in one or the other"),
        html.P("Nats; – was in none of the steps that are looked at.", className="note"),
        parts.table(("pair", *[side.label for side in compared], "its answers"), rows, "snns"),
    ]
