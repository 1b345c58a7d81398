"""The view of answers: how far each fell, who pushed it, by which tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from dash import html

from dynolab.explorer.lines import CHOSEN, REJECTED, Lines, PairPush
from dynolab.explorer.page import parts
from dynolab.explorer.page.state import State
from dynolab.explorer.page.take import copied, map_command, map_python
from dynolab.explorer.study import Answer, Study, Training, split_of
from dynolab.report.forces.token_map import READING, token_map_message, token_map_plot
from dynolab.report.style import SPLITS, in_order, style_of
from dynolab.report.text import excerpt, visible_token
from dynolab.results.study import TokenMap

SHOWN, PER_TOKEN = 10, 5
"""Pairs of each direction in a table."""

HEAD = ("pair", "nats", "its chosen", "its rejected", "at steps", "its answers", "")

SPLIT_CHOICES: dict[str, str] = {"all": "all", **{str(name): text for name, text in SPLITS.items()}}


def listed(study: Study, state: State) -> Any:
    """All watched answers of a kind, the one that fell most first."""
    training = study.training(state.training)
    own = split_of(training.answers.get(state.kind, []), state.split)
    fallen = sum(answer.change < 0 for answer in own)
    rows = [
        html.Li(
            parts.link(
                [
                    html.Span(parts.nats(answer.change), className="n"),
                    html.Span(excerpt(answer.row.prompt, 60), className="prompt"),
                    html.Span(excerpt(answer.row.response, 80), className="quiet"),
                ],
                state.link(answer=answer.row.pair_id),
            )
        )
        for answer in own
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
        html.P(f"{fallen} of {len(own)} fell; Δ log π in nats", className="quiet"),
        html.Ul(rows, className="answers", tabIndex=0),
    ]


def shown(study: Study, state: State, dark: bool, program: str) -> Any:
    """The answer that is chosen, by default the one that fell most."""
    training = study.training(state.training)
    answer = _chosen(training, state)
    if answer is None:
        return html.P("No answer of this kind was watched.")
    state = state.model_copy(update={"answer": answer.row.pair_id})
    account = None
    if answer.row.kind == CHOSEN and answer.row.split == "train" and state.metric == "optimizer":
        account = training.account(answer.row.pair_id, state.step)
    steps = training.recorded_steps
    if account is None and not steps:
        return [_head(answer), html.P("No step was recorded; set record_steps and train again.")]
    whole = state.step is None
    asked = steps if whole else [_nearest(steps, state.step or 0)]
    lines = account or training.lines_to(answer.row, asked, state.asked)
    near = _step_of_map(training, lines, state)
    pair = study.pairs.get(state.pair) if steps else None
    token_map = None if pair is None else training.token_map(answer.row, pair, near, state.asked)
    return [
        _head(answer),
        parts.steps(training.ledger.steps if account and training.ledger else steps, state.step),
        *(_tokens(training, answer, near, token_map, state) if steps else ()),
        _account(lines, account is not None, asked, state),
        *(_map(study, training, answer, token_map, state, dark, program) if token_map else ()),
        *(_token_pushers(study, training, answer, near, state) if steps else ()),
        *_pushers(study, lines, state),
    ]


def _chosen(training: Training, state: State) -> Answer | None:
    own = training.answers.get(state.kind, [])
    named = [answer for answer in own if answer.row.pair_id == state.answer]
    return next(iter(named or split_of(own, state.split)), None)


def _nearest(steps: Sequence[int], step: int) -> int:
    return min(steps, key=lambda other: abs(other - step))


def _step_of_map(training: Training, lines: Lines, state: State) -> int:
    """The recorded step of maps: the chosen one, else where the pair pushed hardest, or nearest."""
    steps = training.recorded_steps
    if state.step is not None or not steps:
        return _nearest(steps, state.step or 0) if steps else -1
    own = lines.pair == state.pair if state.pair else lines.step >= 0
    if not own.any():
        return steps[-1]
    sums = {
        step: abs(lines.nats[own & (lines.step == step)].sum()) for step in set(lines.step[own])
    }
    return _nearest(steps, max(sums, key=lambda step: sums[step]))


def _head(answer: Answer) -> Any:
    row = answer.row
    return html.Div(
        [
            html.H2(f"{row.pair_id}: {parts.nats(answer.change)} nats"),
            html.P(
                f"Its {style_of(row.kind).label} answer, {SPLITS[row.split]}: log π went from "
                f"{answer.start:.1f} to {answer.end:.1f}."
            ),
            html.P(row.prompt, className="given"),
        ]
    )


def _tokens(
    training: Training, answer: Answer, step: int, token_map: TokenMap | None, state: State
) -> list[Any]:
    """The answer, coloured by the pair that is chosen, else by the whole batch of a step."""
    texts = training.token_texts(training.encoded(answer.row))
    if token_map is None:
        pushes, by = training.token_pushes(answer.row, step, state.asked).sum(1), "the whole batch"
    else:
        pushes, by = np.array(token_map.force).sum(1), token_map.updating_id
    addresses = [
        state.link(place=None if place == state.place else place) for place in range(len(texts))
    ]
    return [
        parts.tokens(texts, pushes.tolist(), addresses, state.place),
        html.P(
            f"Colour: push by {by} at step {step}; green raises, brown lowers. "
            "Click a token for its pushers.",
            className="note",
        ),
    ]


def _token_pushers(
    study: Study, training: Training, answer: Answer, step: int, state: State
) -> list[Any]:
    """Who pushed the token that is chosen, at a recorded step."""
    if state.place is None:
        return []
    texts = training.token_texts(training.encoded(answer.row))
    if state.place >= len(texts):
        return []
    lines = training.token_lines(answer.row, state.place, step, state.asked)
    shown = f"“{visible_token(texts[state.place])}”"
    own = [push for push in lines.pushers(0) if push.total][:PER_TOKEN]
    return [
        html.H3(f"Who pulled down {shown} at step {step}"),
        parts.table(HEAD, [_pusher(study, push, state) for push in own], "snnnsss"),
    ]


def _account(lines: Lines, accounted: bool, steps: Sequence[int], state: State) -> Any:
    """Where the change came from, in a sentence."""
    chosen, rejected = (float(lines.through(side)[0]) for side in (CHOSEN, REJECTED))
    apart = [
        f"{parts.nats(float(values[0]))} {name}"
        for name, values in lines.apart.items()
        if abs(values[0]) > 5e-4
    ]
    if accounted:
        when = "over the whole training" if state.step is None else f"at step {state.step}"
    else:
        listed = ", ".join(map(str, steps))
        when = f"at recorded step{'s' if len(steps) > 1 else ''} {listed}"
    parts_of = ", ".join(
        [
            f"{parts.nats(chosen)} through chosen answers",
            f"{parts.nats(rejected)} through rejected ones",
            *apart,
        ]
    )
    return html.P(
        f"{parts.nats(float(lines.measured[0]))} nats {when}: {parts_of}; "
        f"{parts.nats(float(lines.residual[0]))} is left over.",
        className="message",
    )


def _pushers(study: Study, lines: Lines, state: State) -> list[Any]:
    pushers = lines.pushers(0)
    down = [push for push in pushers if push.total < 0][:SHOWN]
    up = [push for push in reversed(pushers) if push.total > 0][:SHOWN]
    return [
        part
        for title, own in (("Who pulled it down", down), ("Who held it up", up))
        if own
        for part in (
            html.H3(title),
            parts.table(HEAD, [_pusher(study, push, state) for push in own], "snnnsss"),
        )
    ]


def _pusher(study: Study, push: PairPush, state: State) -> list[Any]:
    row = study.pairs.get(push.pair)
    texts = [] if row is None else [("y⁺", row.chosen), ("y⁻", row.rejected or "")]
    return [
        parts.link(push.pair, state.link(pair=push.pair), title="its map on this answer"),
        parts.nats(push.total),
        parts.nats(push.from_chosen),
        parts.nats(push.from_rejected),
        parts.listed(push.steps),
        [html.Div(f"{side} {excerpt(text, 60)}") for side, text in texts if text],
        parts.link(
            "left out" if push.pair in state.without else "leave out", state.toggled(push.pair)
        ),
    ]


def _map(
    study: Study,
    training: Training,
    answer: Answer,
    token_map: TokenMap,
    state: State,
    dark: bool,
    program: str,
) -> list[Any]:
    """The map of the pair that is chosen, token by token."""
    pair, step = token_map.updating_id, token_map.step
    assert step is not None
    in_batch = any(example.id == pair for example in training.record(step).examples)
    return [
        html.H3(f"{pair} on {answer.row.pair_id}, token by token, at step {step}", id="map"),
        html.P(token_map_message(token_map), className="message"),
        html.P(
            READING
            if in_batch
            else f"{READING} This pair was not in the step's batch: it is put in place of another.",
            className="note",
        ),
        parts.graph(token_map_plot(token_map), dark),
        html.Details(
            [
                html.Summary("the same as a command, in Python, as a link"),
                copied("as a command", map_command(study, training, step, pair, program)),
                copied("in Python", map_python(training, answer.row, step, pair)),
                copied("as a link to this page", state.link()),
            ]
        ),
    ]
