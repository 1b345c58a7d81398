"""The view of what would be without the ticked pairs, or under another objective or scale.

The scale is that of the rejected gradient. What is taken from the page is a filtered file and
settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
from dash import html

from dynolab.explorer.lines import Lines, lines_to_means
from dynolab.explorer.page import parts
from dynolab.explorer.page.export import objective_of, taken
from dynolab.explorer.page.state import BETAS, OBJECTIVES, State
from dynolab.explorer.study import Study
from dynolab.explorer.training import Training
from dynolab.explorer.watched import Answer
from dynolab.report.figure import base_layout
from dynolab.report.style import (
    CHOSEN,
    MUTED,
    REJECTED,
    SPLITS,
    join,
    number,
    objective_name,
    plotly_text,
    style_of,
)
from dynolab.results.ledger_reader import within_room

COLORS = {"train": CHOSEN, "heldout": REJECTED}
NAMED = 3  # pairs that a headline names
SURE = 2.0  # standard deviations of another order beyond which a direction is clear
DOSES = (0.0, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5)


def title(state: State) -> str:
    """The view's name, with the number of pairs that are left out."""
    return f"what if ({len(state.without)})" if state.without else "what if"


def listed(study: Study, state: State) -> Any:
    """The pairs that are ticked, and what else is changed."""
    training = study.training(state.training)
    trained = objective_name(training.objective.name)
    ticked = [
        html.Li(parts.link(f"{pair} ×", state.toggled(pair), title="take it back in"))
        for pair in state.without
    ]
    return [
        html.P("Left out", className="label"),
        html.Ul(ticked, className="ticked")
        if ticked
        else html.P(
            "No pair yet: choose “leave out” beside pairs in the other views.", className="quiet"
        ),
        _doses(training, state),
        parts.choices(
            "objective",
            [
                (
                    objective_name(name) if name else f"as trained ({trained})",
                    state.link(objective=name, beta=None),
                    name == state.objective,
                )
                for name in OBJECTIVES
            ],
        ),
        _betas(training, state),
    ]


def _doses(training: Training, state: State) -> Any:
    chosen = state.dose_in(training)
    if chosen is None:
        objective = objective_name(state.objective_in(training).name)
        return html.P(
            f"{objective} has no scale of the rejected gradient to set.", className="quiet"
        )
    return parts.choices(
        "scale of the rejected gradient",
        [(f"{dose:g}", state.link(dose=dose), dose == chosen) for dose in DOSES],
    )


def _betas(training: Training, state: State) -> Any:
    """Every β that the objective may have; the one that it has without asking is among them."""
    trained_beta = getattr(
        state.model_copy(update={"beta": None}).objective_in(training), "beta", None
    )
    if trained_beta is None:
        return None
    chosen = state.beta or trained_beta
    return parts.choices(
        "β",
        [
            (f"{beta:g}", state.link(beta=None if beta == trained_beta else beta), beta == chosen)
            for beta in sorted({*BETAS, trained_beta, chosen})
        ],
    )


def shown(study: Study, state: State, dark: bool, *, computed: bool = True) -> list[Any]:
    """What the change does, to first order: to one answer, then to all.

    **Arguments:** `computed`: with what recorded steps say, which is there.
    """
    training = study.training(state.training)
    _, error = training.computable()
    stored = _over_training(training, state)
    recorded = _at_recorded_steps(training, state) if computed else None
    first = None if stored or recorded else _on_the_answer(training, state)
    forecasts = [forecast for forecast in (stored, recorded, first) if forecast is not None]
    return [
        html.H2("What if"),
        *_headline(training, state, forecasts),
        _folded("The whole training, by the ledger", _table(stored)) if stored else None,
        _folded(
            f"The recorded steps {recorded.steps} alone, all answers",
            _on_all_answers(training, state, recorded, dark),
            opened=stored is None,
        )
        if recorded
        else None,
        parts.failed(error),
        *taken(study, training, state),
    ]


@dataclass(frozen=True)
class Forecast:
    """Changes of some answers in nats, by name: as `lines` have them and as they `would` be.

    A change that no probability has room for is infinite, one that is not known NaN. `steps`: the
    recorded steps that it is of; empty for the whole training, of which `reasons` say why a change
    is not known.
    """

    names: Sequence[str]
    lines: Lines
    would: np.ndarray
    steps: str = ""
    reasons: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        lines: Lines,
        ends: Sequence[float],
        training: Training,
        state: State,
        *,
        instead: Lines | None = None,
        steps: str = "",
    ) -> Forecast:
        """The change without the ticked pairs, at the scale that is chosen; `ends`: log π of the
        answers after the training.
        """
        dose = state.dose_in(training)
        would = lines.what_if(state.without, 1.0 if dose is None else dose, instead)
        room = within_room(would - lines.measured, np.array(ends))
        return cls(names, lines, lines.measured + room, steps)

    @property
    def beyond(self) -> int:
        """How many answers first order does not reach."""
        return int(np.isinf(self.would).sum())


def _over_training(training: Training, state: State) -> Forecast | None:
    """On what the ledger is of, over all steps; None without one, and for another objective."""
    accounts = lines_to_means(training.ledger, singles=True)
    if accounts is None or training.ledger is None or state.under(training) != state.asked:
        return None
    if state.metric != "optimizer":
        return None
    stored = training.ledger.accounts
    names = [parts.account_name(row) for row in accounts[0]]
    ends = [account.bounded_end for account in stored]
    forecast = Forecast.of(names, accounts[1], ends, training, state)
    reasons = [
        training.ledger.why_unknown(account) if state.without or not account.steady else ""
        for account in stored
    ]
    would = np.where(np.array(reasons) == "", forecast.would, np.nan)
    return replace(forecast, would=would, reasons=reasons)


def _at_recorded_steps(training: Training, state: State) -> Forecast | None:
    """At the recorded steps, on every answer of the kind; None before they are computed."""
    computed = training.known_lines(state.kind, state.asked, state.changed(training))
    computed = computed or training.known_lines(state.kind, state.asked, state.under(training))
    if computed is None:
        return None
    return _recorded(training, state, training.answers[state.kind], *computed)


def _on_the_answer(training: Training, state: State) -> Forecast | None:
    """At the recorded steps, on the answer of the headline alone, which takes a moment."""
    steps, _ = training.computable()
    changed = state.changed(training)
    watched = training.answers.get(state.kind, [])
    named = [answer for answer in watched if answer.row.pair_id == state.answer]
    answers = (named or watched)[:1]
    if not steps or not answers or not (state.without or changed.objective or state.dose != 1):
        return None
    row = answers[0].row
    lines, instead = (training.lines_to(row, steps, asked) for asked in (state.asked, changed))
    return _recorded(training, state, answers, lines, instead)


def _recorded(
    training: Training, state: State, answers: Sequence[Answer], lines: Lines, instead: Lines
) -> Forecast:
    """At recorded steps: `lines` as they were, and as asked."""
    label = style_of(state.kind).label
    return Forecast.of(
        [f"{answer.row.pair_id}, {label}" for answer in answers],
        lines,
        [answer.end for answer in answers],
        training,
        state,
        instead=instead,
        steps=", ".join(map(str, sorted(set(lines.step.tolist())))),
    )


def _headline(training: Training, state: State, forecasts: Sequence[Forecast]) -> list[Any]:
    """What the change does to the answer that one came from, else to the one that fell most."""
    changes = []
    if state.without:
        pairs = state.without if len(state.without) <= NAMED else [f"{len(state.without)} pairs"]
        changes.append(f"without {join(list(pairs))}")
    objective, dose = objective_of(training, state), state.dose_in(training)
    if state.under(training).objective is not None:
        beta = "" if state.beta is None else f" (β {state.beta:g})"
        changes.append(f"under {objective_name(objective.name)}{beta}")
    if dose not in (None, 1.0):
        changes.append(f"with {dose:g} of the rejected gradient")
    watched = training.answers.get(state.kind, [])
    label = style_of(state.kind).label
    candidates = [state.answer] if state.answer else [answer.row.pair_id for answer in watched]
    for name in candidates if changes else ():
        for forecast in forecasts:
            if f"{name}, {label}" in forecast.names:
                place = forecast.names.index(f"{name}, {label}")
                what = join(changes)
                what = f"{what[0].upper()}{what[1:]}"
                return _one(name, what, forecast, place, left_out=bool(state.without))
    return []


def _one(name: str, what: str, forecast: Forecast, place: int, *, left_out: bool) -> list[Any]:
    measured, rest = (
        parts.nats(float(values[place]))
        for values in (forecast.lines.measured, forecast.lines.residual)
    )
    where = f" at the recorded steps {forecast.steps}" if forecast.steps else ""
    would = parts.forecast(float(forecast.would[place]))
    if np.isnan(forecast.would[place]):
        message = f"{what}: where {name} ends is not known, only a training tells."
        message = f"{message} {forecast.reasons[place]}"
        return [html.P(message, className="message")]
    message = f"{what}: {name} {would} instead of {measured} nats{where}."
    note = (
        f"{_FIRST_ORDER}{_REFILLED if left_out else _OTHER_STEPS} The account of this answer "
        f"leaves {rest} nats of what was measured."
    )
    return [
        html.P(message + _order(forecast, place) * left_out, className="message"),
        html.P(note, className="note"),
    ]


_FIRST_ORDER = "To first order, the weights at every step as they were."
_OTHER_STEPS = (
    " A training with another loss or dose soon leaves these weights: take the direction, and see "
    "what it costs the margin; the size only a training tells."
)
_REFILLED = (
    " Each free place in a batch is taken by a remaining pair, which does what these did on "
    "average. Trainings on fewer rows moved this way, but later steps made up for part of it: they "
    "went 0.3 to 1.2 times as far in the built-in data."
)
"""What `tests.benchmarks.removal_forecasts` measured of forecasts, over five seeds."""


def _order(forecast: Forecast, place: int) -> str:
    """What a training on fewer rows, which has them in another order, may show besides."""
    if forecast.steps:
        return ""
    order = float(forecast.lines.reordered[place])
    if not order:
        return " Another order of the rows changes it, too: how much is not known."
    told = f" Another order of the rows changes it by about {number(order, 3)} nats"
    if abs(forecast.would[place] - forecast.lines.measured[place]) > SURE * order:
        return f"{told}, too."
    return f"{told}: too much to know which way a training without them moves it."


def _folded(summary: str, content: Sequence[Any], *, opened: bool = False) -> Any:
    return html.Details([html.Summary(summary), *content], open=opened)


def _table(forecast: Forecast) -> list[Any]:
    rows = [
        [
            name,
            parts.nats(float(measured)),
            parts.forecast(float(would)),
            parts.forecast(round(float(would - measured), 9) + 0.0),  # no rounding of sums, no −0
            parts.nats(float(rest)),
        ]
        for name, measured, would, rest in zip(
            forecast.names,
            forecast.lines.measured,
            forecast.would,
            forecast.lines.residual,
            strict=True,
        )
    ]
    return parts.accounts(("change", "would be", "difference", "left over by the account"), rows)


def _on_all_answers(training: Training, state: State, forecast: Forecast, dark: bool) -> list[Any]:
    """Counts and means by split, and every answer as a point."""
    answers = training.answers[state.kind]
    absent = [pair for pair in state.without if pair not in forecast.lines.pairs]
    return [
        html.P(
            f"{join(absent)} {'is' if len(absent) == 1 else 'are'} in no batch of these steps: "
            "leaving it out changes nothing here.",
            className="message",
        )
        if absent
        else None,
        html.P(
            "What each of these steps would have lacked. A training shows the rest."
            + f" {forecast.beyond} answers go up beyond first order and are not drawn."
            * bool(forecast.beyond),
            className="note",
        ),
        parts.table(
            ("answers", "fell", "would fall", "mean change", "would be"),
            [
                _summary(answers, forecast, split, style_of(state.kind).label)
                for split in SPLITS
                if any(answer.row.split == split for answer in answers)
            ],
            "snnnn",
        ),
        parts.graph(_scatter(answers, forecast.lines.measured, forecast.would), dark),
    ]


def _summary(answers: list[Answer], forecast: Forecast, split: str, kind: str) -> list[Any]:
    of_split = np.array([answer.row.split == split for answer in answers])
    before, after = forecast.lines.measured[of_split], forecast.would[of_split]
    return [
        f"{kind}, {'training' if split == 'train' else 'held-out'}",
        f"{int((before < 0).sum())} of {len(before)}",
        f"{int((after < 0).sum())} of {len(after)}",
        parts.nats(float(before.mean())),
        parts.forecast(float(after.mean())),
    ]


def _scatter(answers: list[Answer], before: np.ndarray, after: np.ndarray) -> go.Figure:
    """Every answer within first order: its change as it was, and as it would be."""
    figure, drawn = go.Figure(), np.isfinite(after)
    for split, label in SPLITS.items():
        places = [
            place
            for place, answer in enumerate(answers)
            if answer.row.split == split and drawn[place]
        ]
        figure.add_scatter(
            x=before[places],
            y=after[places],
            mode="markers",
            name=label,
            marker={"color": COLORS[split], "size": 7, "opacity": 0.75},
            text=[plotly_text(answers[place].row.pair_id) for place in places],
            hovertemplate="%{text}: %{x:+.3f} → %{y:+.3f} nats<extra></extra>",
        )
    ends = np.concatenate([before, after[drawn]])
    low, high = float(ends.min()), float(ends.max())
    line = {"width": 1, "color": MUTED}
    figure.update_layout(
        base_layout(
            420,
            margin={"l": 70, "r": 20, "t": 30, "b": 50},
            shapes=[{"type": "line", "x0": low, "x1": high, "y0": low, "y1": high, "line": line}],
            legend={"orientation": "h", "y": 1.08},
        )
    )
    figure.update_xaxes(title_text="change as trained (nats)")
    figure.update_yaxes(title_text="change as asked (nats)")
    return figure
