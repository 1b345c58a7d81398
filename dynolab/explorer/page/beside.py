"""Two trainings side by side: what each did to one answer, and through which pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import html

from dynolab.data.rows import ProbeRow
from dynolab.explorer.lines import PairPush
from dynolab.explorer.page import parts
from dynolab.explorer.page.moved import Moved, sentence, step_of_map, what_moved
from dynolab.explorer.page.pushers import answers_of
from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from dynolab.explorer.training import Training
from dynolab.report.text import number

SHOWN = 12


def shown(study: Study, row: ProbeRow, state: State) -> list[Any]:
    """An answer under the training that is chosen and under the one beside it."""
    trainings = [study.training(state.training), study.trainings[state.beside]]
    moves, columns = [], []
    for training in trainings:
        recorded, error = training.computable()
        moved = what_moved(training, row, state, recorded)
        column = _column(training, row, moved, recorded, state)
        columns.append(html.Div([*column, parts.failed(error)], className="column"))
        moves.append(moved)
    return [html.Div(columns, className="beside"), *_pairs(study, trainings, moves, state)]


def _column(
    training: Training, row: ProbeRow, moved: Moved | None, recorded: Sequence[int], state: State
) -> list[Any]:
    watched = [answer for answer in training.answers.get(row.kind, ()) if answer.row == row]
    change = [
        html.P(
            f"log π went from {number(answer.start, 4)} to {number(answer.end, 4)}: "
            f"{parts.nats(answer.change)} nats."
        )
        for answer in watched
    ]
    account = [] if moved is None else [sentence(moved, state)]
    if moved is not None and recorded:
        account += _tokens(training, row, step_of_map(recorded, moved.lines, state), state)
    return [html.H3(training.label), *change, *account]


def _tokens(training: Training, row: ProbeRow, step: int, state: State) -> list[Any]:
    """The answer, coloured by the whole batch of a recorded step."""
    texts = training.token_texts(training.encoded(row))
    pushes = training.token_pushes(row, step, state.asked).sum(1).tolist()
    addresses = [
        state.link(training=training.name, beside="", place=place) for place in range(len(texts))
    ]
    note = f"Colour: push by the whole batch at step {step}; green raises, brown lowers."
    return [parts.tokens(texts, pushes, addresses, None), html.P(note, className="note")]


def _pairs(
    study: Study, trainings: list[Training], moves: list[Moved | None], state: State
) -> list[Any]:
    """The pairs that pulled hardest in one of both, with their pushes in each."""
    pushes: list[dict[str, PairPush]] = [
        {} if moved is None else {push.pair: push for push in moved.lines.pushers(0)}
        for moved in moves
    ]
    lowest: dict[str, float] = {}
    for by_pair in pushes:
        for pair, push in by_pair.items():
            lowest[pair] = min(lowest.get(pair, 0.0), push.total)
    hardest = sorted(lowest, key=lambda pair: lowest[pair])[:SHOWN]
    rows = []
    for pair in hardest:
        nats = [parts.nats(by_pair[pair].total) if pair in by_pair else "–" for by_pair in pushes]
        answers = answers_of(study, pair)
        address = state.link(beside="", pair=pair)
        rows.append([parts.link(pair, address, title="its map on this answer"), *nats, answers])
    labels = [training.label for training in trainings]
    return [
        html.H3("Who pulled it down, in one or the other"),
        html.P("Nats; – was in none of the steps that are looked at.", className="note"),
        parts.table(("pair", *labels, "its answers"), rows, "snns"),
    ]
