"""The view of pairs: whom a pair harms, and whom it helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import html

from dynolab.data.rows import Example
from dynolab.explorer.lines import CHOSEN, REJECTED, Lines, lines_to_means
from dynolab.explorer.page import parts, search
from dynolab.explorer.page.moved import nearest
from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from dynolab.explorer.training import Training
from dynolab.explorer.watched import Answer
from dynolab.report.style import SPLITS, excerpt, style_of
from dynolab.results.ledger import FunctionalRow
from dynolab.results.ledger_reader import Pusher

SHOWN, LISTED = 12, 300
MEANS = (CHOSEN, REJECTED, "argmax")
HEAD = ("answer", "nats", "its chosen", "its rejected", "split", "prompt and answer")


def listed(study: Study, state: State) -> Any:
    """The training pairs, the one that pulled down most first."""
    harm, where = _mean_pushes(study.training(state.training), state)
    rows = [
        html.Li(
            parts.link(
                [
                    html.Span(parts.nats(harm[pair], 2) if pair in harm else "–", className="n"),
                    parts.said(excerpt(study.pairs[pair].prompt, 60), "prompt"),
                    parts.said(f"{pair} · {excerpt(study.pairs[pair].chosen, 60)}", "quiet"),
                ],
                state.link(pair=pair),
            )
        )
        for pair in _hardest_first(study, harm)[:LISTED]
    ]
    left = len(study.pairs) - len(rows)
    return [
        html.P(f"Mean push on {where}, in nats; – has none.", className="quiet"),
        html.Ul(rows, className="answers", tabIndex=0),
        html.P(f"{left:,} more pairs: search them", className="quiet") if left > 0 else None,
    ]


def _hardest_first(study: Study, harm: Mapping[str, float]) -> list[str]:
    return sorted(study.pairs, key=lambda pair: (pair not in harm, harm.get(pair, 0)))


def stored_pushes(training: Training, state: State) -> tuple[dict[str, float], str] | None:
    """Every pair's push on the mean answer of a kind by the ledger, and which answers these are."""
    means = lines_to_means(training.ledger) if state.metric == "optimizer" else None
    for place, row in enumerate(means[0] if means else ()):
        if means and (row.kind, row.split) == (state.kind, "train"):
            where = f"the mean {style_of(row.kind).label} answer of {len(row.pairs)} training pairs"
            return _means(means[1].to(place)), f"{where}, over the whole training"
    return None


def _mean_pushes(training: Training, state: State) -> tuple[dict[str, float], str]:
    """Every pair's mean push on the answers of a kind, and on which answers it is."""
    if (stored := stored_pushes(training, state)) is not None:
        return stored
    label = style_of(state.kind).label
    if (recorded_lines := training.known_lines(state.kind, state.asked)) is not None:
        return _means(recorded_lines[0]), f"all {label} answers at the recorded steps"
    return {}, f"{label} answers"


def _means(lines: Lines) -> dict[str, float]:
    count = lines.nats.shape[1]
    return {pair: float(lines.nats[lines.pair == pair].sum()) / count for pair in lines.pairs}


def _chosen(study: Study, state: State) -> Example:
    """The pair of the address, else the one that pulled down most."""
    if state.pair in study.pairs:
        return study.pairs[state.pair]
    harm, _ = _mean_pushes(study.training(state.training), state)
    return study.pairs[_hardest_first(study, harm)[0]]


def replacing(study: Study, state: State) -> tuple[Example, int] | None:
    """The pair that is shown, and the recorded step in which it takes another pair's place; None
    where its step has it, and without a step that can be computed.
    """
    training, pair = study.training(state.training), _chosen(study, state)
    steps, _ = training.computable()
    with_pair = [step for step in training.recorded_steps if pair.id in training.batches[step]]
    if not steps or (with_pair and state.step is None):
        return None
    step = steps[-1] if state.step is None else nearest(steps, state.step)
    return None if step in with_pair else (pair, step)


def shown(study: Study, state: State, *, computed: bool = True) -> list[Any]:
    """The pair that is chosen; `computed`: with what recorded steps say, which is there."""
    training, pair = study.training(state.training), _chosen(study, state)
    steps, error = training.computable()
    tick = "take it back in" if pair.id in state.without else "leave it out"
    return [
        search.any_pair(study, state, "any pair"),
        html.H2(pair.id),
        parts.given(pair.prompt),
        html.P([html.B("y⁺ ", className="up"), parts.said(pair.chosen)]),
        html.P([html.B("y⁻ ", className="down"), parts.said(pair.rejected or "–")]),
        html.P(parts.link(f"{tick} (what if)", state.toggled(pair.id))),
        *_over_training(training, pair.id, state),
        parts.failed(error),
        *(_at_recorded_steps(study, pair, steps, state) if computed else ()),
    ]


def _at_recorded_steps(
    study: Study, pair: Example, steps: Sequence[int], state: State
) -> list[Any]:
    """Whom it harms and helps at recorded steps, or would in place of another pair."""
    training = study.training(state.training)
    recorded_lines = training.known_lines(state.kind, state.asked)
    if recorded_lines is None:
        return []
    lines = recorded_lines[0]
    batch_steps = sorted(set(lines.step[lines.pair == pair.id].tolist()))
    if batch_steps and (state.step is None or not steps):
        plural = "s" if len(batch_steps) > 1 else ""
        when = f"at recorded step{plural} {', '.join(map(str, batch_steps))}"
    elif steps:
        step = steps[-1] if state.step is None else nearest(steps, state.step)
        lines = training.lines_of(pair, step, state.kind, state.asked)
        instead = (
            "" if step in batch_steps else ", in place of another pair: its batch had not this one"
        )
        when = f"at step {step}{instead}"
    else:
        return []
    answers = training.answers[state.kind]
    pushes = lines.pushed_by(pair.id)
    order = sorted(range(len(pushes)), key=lambda place: pushes[place].total)
    harmed = [place for place in order if pushes[place].total < 0]
    helped = [place for place in reversed(order) if pushes[place].total > 0]
    mean = sum(push.total for push in pushes) / len(pushes)
    return [
        parts.steps(steps or batch_steps, state.step),
        search.any_answer(study, state, "its map on any answer") if steps and state.pair else None,
        html.P(
            f"{when[0].upper()}{when[1:]}: it pulls {len(harmed)} of {len(pushes)} "
            f"{style_of(state.kind).label} answers down and holds {len(helped)} up; "
            f"{parts.nats(mean)} nats on average.",
            className="message",
        ),
        html.H3("Whom it harms"),
        _table(answers, pushes, harmed[:SHOWN], state),
        html.H3("Whom it helps"),
        _table(answers, pushes, helped[:SHOWN], state),
    ]


def _over_training(training: Training, pair: str, state: State) -> list[Any]:
    """Its sums over all steps, from the ledger: on means, and on answers that have an account."""
    accounts = lines_to_means(training.ledger, singles=True)
    if accounts is None:
        return []
    functionals, lines = accounts
    pushes = zip(functionals, lines.pushed_by(pair), strict=False)
    rows = [
        [
            _account(row, pair, state),
            parts.nats(push.total),
            parts.nats(push.from_chosen),
            parts.nats(push.from_rejected),
        ]
        for row, push in sorted(pushes, key=lambda batch_steps: batch_steps[1].total)
        if row.single or row.kind in MEANS
    ]
    return parts.accounts(("nats", "its chosen", "its rejected"), rows) if rows else []


def _account(row: FunctionalRow, pair: str, state: State) -> Any:
    """What an account is of; a link where that is one answer."""
    name = parts.account_name(row)
    if not row.single:
        return name
    address = state.link(view="answers", kind=row.kind, answer=row.name, pair=pair, step=None)
    return parts.link(name, address, title="the pair's map on this answer")


def _table(answers: list[Answer], pushes: list[Pusher], places: list[int], state: State) -> Any:
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
                [
                    html.Div(excerpt(row.prompt, 60), dir="auto"),
                    html.Div(excerpt(row.response, 70), dir="auto"),
                ],
            ]
        )
    return parts.table(HEAD, rows, "snnnss")
