"""What pushing single sampled answers and tokens does to right answers."""

from __future__ import annotations

import numpy as np

from dynolab.comparisons.arm_table import (
    FROM_RIGHT,
    FROM_WRONG,
    HARM_FOUND,
    HARMFUL,
    PRECISION,
    RECALL,
    ArmTable,
)
from dynolab.report.dots import DotPanel, dot_plot
from dynolab.report.figure import Figure, subplots
from dynolab.report.inputs.arms import GroupPageInputs
from dynolab.report.style import CHOSEN, REJECTED
from dynolab.report.text import join, plotly_text, points, with_interval
from dynolab.results.groups import CompletionForce
from dynolab.statistics import Interval

_MOST_POINTS, _MOST_ARMS = 400, 3
_CHOSEN, _ANY = "chosen by the rule", "any of wrong answers"


def completion_figure(inputs: GroupPageInputs, figures: ArmTable) -> Figure | None:
    """Push of every sampled answer on its question's right answers, by its advantage."""
    by_arm = {
        arm: rows
        for arm in inputs.arms
        if (rows := [row for run in inputs.of_arm(arm) for row in run.completions])
    }
    shown = dict(list(by_arm.items())[:_MOST_ARMS])
    if not shown:
        return None
    plot = subplots(
        [plotly_text(arm, 32) for arm in shown],
        440,
        space=0.05,
        shared_y=True,
        margin={"l": 64, "r": 24, "t": 72, "b": 52},
        x={"title_text": "advantage of the answer"},
        y_title="push on the right answers (nats per unit of learning rate)",
    )
    for col, rows in enumerate(shown.values(), start=1):
        for correct, label, color in ((True, "right", CHOSEN), (False, "wrong", REJECTED)):
            own = [row for row in rows if row.correct == correct]
            own = own[:: -(-len(own) // _MOST_POINTS) or 1]
            plot.add_scatter(
                x=[round(row.advantage, 4) for row in own],
                y=[float(f"{row.force:.4g}") for row in own],
                mode="markers",
                name=f"{label} answer",
                legendgroup=label,
                showlegend=col == 1,
                marker={"color": color, "size": 5, "opacity": 0.5},
                hovertemplate=f"{label} answer, advantage %{{x:.2f}}: %{{y:+.3g}}<extra></extra>",
                row=1,
                col=col,
            )
    every = np.array([row.force for rows in shown.values() for row in rows])
    low, high = np.quantile(every, [0.01, 0.99])
    room = 0.1 * (high - low)
    plot.update_yaxes(range=[float(low - room), float(high + room)])
    return Figure(
        "completions",
        "What each sampled answer does to the right ones",
        _completion_message(inputs, figures, by_arm),
        "A point: one answer sampled to a training prompt before training, its advantage the mean "
        "over its tokens. Its push: the "
        "first-order change, by the gradient of this answer's part of the loss alone, of the mean "
        "log π of its prompt's right answers. Below zero it drags them down. Of all seeds, at most "
        f"{_MOST_POINTS} of each kind are drawn, and the axis leaves out the outermost percent; "
        "all are counted.",
        plot,
    )


def _completion_message(
    inputs: GroupPageInputs, figures: ArmTable, by_arm: dict[str, list[CompletionForce]]
) -> str:
    parts = []
    for arm, rows in by_arm.items():
        wrong = [row for row in rows if not row.correct and row.advantage]
        dragging = sum(row.force < 0 for row in wrong)
        share = f"{100 * dragging / len(wrong):.0f}%" if wrong else "none"
        parts.append(f"{share} under {arm}")
    own = inputs.baseline if inputs.baseline in by_arm else next(iter(by_arm))
    right, wrong_push = (figures.mean(own, name) for name in (FROM_RIGHT, FROM_WRONG))
    return (
        f"Wrong answers that drag their prompt's right ones down: {join(parts)}. Under {own} the "
        f"push on right answers themselves lifts them by {with_interval(right)}, the push on wrong "
        f"ones by {with_interval(wrong_push)}, in nats per unit of the learning rate and question."
    )


def choice_figure(inputs: GroupPageInputs, figures: ArmTable) -> Figure | None:
    """How well rules that push some tokens less find those that drag right answers down."""
    arms = [arm for arm in inputs.arms if figures.mean(arm, PRECISION).n]
    if not arms:
        return None
    panels = (
        DotPanel("Tokens that do harm", "share", {_CHOSEN: PRECISION, _ANY: HARMFUL}, ".0%"),
        DotPanel("Harmful tokens found", "share", {_CHOSEN: RECALL}, ".0%"),
        DotPanel("Their harm found", "share of nats", {_CHOSEN: HARM_FOUND}, ".0%"),
    )
    said = [
        f"{_percent(figures.mean(arm, PRECISION))} under {arm}, which finds "
        f"{_percent(figures.mean(arm, RECALL))} of the harmful tokens and "
        f"{_percent(figures.mean(arm, HARM_FOUND))} of their harm"
        for arm in arms
    ]
    return Figure(
        "choice",
        "Does the rule find the tokens that do harm?",
        f"Of all tokens of wrong answers {_percent(figures.mean(arms[0], HARMFUL))} drag right "
        f"answers down; of the chosen ones {join(said)}.",
        "A token does harm if pushing it down as the plain objective does lowers the mean log π of "
        "its prompt's right answers, exactly and to first order, through all weights. NTHR "
        "estimates that from the last layer alone, and chooses the tokens whose estimate exceeds "
        "its threshold; random_tokens draws as many of each answer. A rule that says nothing has "
        "the precision of all tokens. Intervals are over " + inputs.unit + ".",
        dot_plot(figures, arms, panels),
    )


def _percent(share: Interval) -> str:
    mean, _, ends = points(share, sign=False).partition(" ")
    return f"{mean}% {ends}".rstrip()
