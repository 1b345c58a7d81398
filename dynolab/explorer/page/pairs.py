"""The view of pairs: whom a pair harms, and whom it helps."""

from __future__ import annotations

from typing import Any

from dash import html

from dynolab.explorer.lines import CHOSEN, PairPush
from dynolab.explorer.page import parts
from dynolab.explorer.page.state import State
from dynolab.explorer.stored import lines_to_means
from dynolab.explorer.study import Study
from dynolab.explorer.training import Answer, Training
from dynolab.report.style import SPLITS, style_of
from dynolab.report.text import excerpt

SHOWN = 12
HEAD = ("answer", "nats", "its chosen", "its rejected", "", "prompt and answer")


def listed(study: Study, state: State) -> Any:
    """The training pairs, the one that pulled down most first."""
    training = study.training(state.training)
    lines = training.all_known(state.kind, state.asked)
    harm: dict[str, float] = {}
    if lines is not None:
        totals = lines.nats.sum(1)
        for pair in lines.pairs:
            harm[pair] = float(totals[lines.pair == pair].sum()) / lines.nats.shape[1]
    rows = [
        html.Li(
            parts.link(
                [
                    html.Span(parts.nats(harm[pair], 2) if pair in harm else "–", className="n"),
                    html.Span(excerpt(study.pairs[pair].prompt, 60), className="prompt"),
                    html.Span(excerpt(study.pairs[pair].chosen, 60), className="quiet"),
                ],
                state.link(pair=pair),
            )
        )
        for pair in sorted(study.pairs, key=lambda pair: (pair not in harm, harm.get(pair, 0)))
    ]
    label = style_of(state.kind).label
    return [
        html.P(
            f"Mean push on all {label} answers at the recorded steps, in nats; – was in none of "
            "their batches.",
            className="quiet",
        ),
        html.Ul(rows, className="answers", tabIndex=0),
    ]


def shown(study: Study, state: State) -> Any:
    """The pair that is chosen."""
    training = study.training(state.training)
    pair = study.pairs.get(state.pair)
    if pair is None:
        return html.P("Choose a pair.")
    steps = training.recorded_steps
    lines = training.all_known(state.kind, state.asked)
    if not steps:
        return html.P("No step was recorded; set record_steps and train again.")
    assert lines is not None, "waited for"
    if state.step is not None:
        step = min(steps, key=lambda other: abs(other - (state.step or 0)))
        lines = training.lines_of(pair, step, state.kind, state.asked)
        when = f"at step {step}"
    elif (lines.pair == pair.id).any():
        own = sorted(set(lines.step[lines.pair == pair.id].tolist()))
        when = f"at recorded step{'s' if len(own) > 1 else ''} {', '.join(map(str, own))}"
    else:
        lines = training.lines_of(pair, steps[-1], state.kind, state.asked)
        when = f"at step {steps[-1]}, in place of another pair: no recorded batch had it"
    answers = training.answers[state.kind]
    pushes = lines.pushed_by(pair.id)
    order = sorted(range(len(pushes)), key=lambda place: pushes[place].total)
    harmed = [place for place in order if pushes[place].total < 0]
    helped = [place for place in reversed(order) if pushes[place].total > 0]
    mean = sum(push.total for push in pushes) / len(pushes)
    return [
        html.H2(pair.id),
        html.P(pair.prompt, className="given"),
        html.P([html.B("y⁺ ", className="up"), pair.chosen]),
        html.P([html.B("y⁻ ", className="down"), pair.rejected or "–"]),
        html.P(parts.link(_tick(pair.id, state), state.toggled(pair.id))),
        parts.steps(steps, state.step),
        html.P(
            f"{when[0].upper()}{when[1:]}: it pulls {len(harmed)} of {len(pushes)} "
            f"{style_of(state.kind).label} answers down and holds {len(helped)} up; "
            f"{parts.nats(mean)} nats on average.",
            className="message",
        ),
        *_over_training(training, pair.id),
        html.H3("Whom it harms"),
        _table(answers, pushes, harmed[:SHOWN], state),
        html.H3("Whom it helps"),
        _table(answers, pushes, helped[:SHOWN], state),
    ]


def _tick(pair: str, state: State) -> str:
    return "take it back in (what if)" if pair in state.without else "leave it out (what if)"


def _over_training(training: Training, pair: str) -> list[Any]:
    """What the ledger says of it: its sum over all steps, on the mean of each kind."""
    means = lines_to_means(training.ledger)
    if means is None:
        return []
    rows, lines = means
    pushes = lines.pushed_by(pair)
    said = [
        f"{parts.nats(push.total)} on {SPLITS[row.split]} {style_of(row.kind).label}"
        for row, push in zip(rows, pushes, strict=False)
        if row.kind in (CHOSEN, "rejected", "argmax")
    ]
    return [html.P(f"Over the whole training, on means: {'; '.join(said)}.")] if said else []


def _table(answers: list[Answer], pushes: list[PairPush], places: list[int], state: State) -> Any:
    rows = []
    for place in places:
        row, push = answers[place].row, pushes[place]
        address = state.link(view="answers", answer=row.pair_id)
        rows.append(
            [
                parts.link(row.pair_id, address, title="the pair's map on this answer"),
                parts.nats(push.total),
                parts.nats(push.from_chosen),
                parts.nats(push.from_rejected),
                SPLITS[row.split],
                [html.Div(excerpt(row.prompt, 60)), html.Div(excerpt(row.response, 70))],
            ]
        )
    return parts.table(HEAD, rows, "snnnss")
