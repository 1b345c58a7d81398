"""How far the first-order picture carries: the radius of validity of recorded steps and of all."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dynolab.forces.step.radius import rate_radius
from dynolab.report.figure import LEGEND_BELOW, Figure, subplots
from dynolab.report.inputs.study import Training
from dynolab.report.page import Section, section, table
from dynolab.report.style import CHOSEN, REJECTED, ZERO, objective_name, stage_title
from dynolab.report.text import join, number, true_minus
from dynolab.results.forces import Validity

_PARTS, _SMALLEST = 4, 0.01
"""Parts of the second order that a row of the table names, and the smallest share among them."""

_BEYOND = 16
"""How many times the largest radius the figure shows."""


def validity_figure(trainings: Sequence[Training]) -> Figure | None:
    """Unexplained share against multiples of a training's last step, and of all its steps."""
    trainings = [training for training in trainings if training.validity]
    if not trainings:
        return None
    radii = [own.predicted for training in trainings for own, _, _ in _shown(training)]
    last = _BEYOND * max([1.0, *(radius for radius in radii if math.isfinite(radius))])
    plot = subplots(
        [stage_title(training.stage) for training in trainings],
        440,
        space=0.1,
        margin={"l": 72, "r": 24, "t": 48, "b": 110},
        legend=LEGEND_BELOW | {"x": 0, "xanchor": "left"},
        x={"type": "log", "title_text": "times the learning rate", "dtick": 1},
        y={"type": "log", "range": [-6, 0.6], "dtick": 2, "tickformat": ".4~%"},
        y_title="left unexplained, 1 − R²",
    )
    for col, training in enumerate(trainings, start=1):
        where = {"row": 1, "col": col}
        for own, name, color in _shown(training):
            look = {"legendgroup": name, "name": name, **where}
            plot.add_scatter(
                x=[point.multiple for point in own.sweep if point.multiple <= last],
                y=[point.predicted for point in own.sweep if point.multiple <= last],
                mode="lines",
                line={"color": color, "width": 2},
                showlegend=col == 1,
                hovertemplate="predicted %{y:.3g} at %{x:.3g} times<extra></extra>",
                **look,
            )
            taken = [point for point in own.sweep if point.measured is not None]
            plot.add_scatter(
                x=[1.0, *(point.multiple for point in taken)],
                y=[own.unexplained, *(point.measured for point in taken)],
                mode="markers",
                marker={"color": color, "size": 8},
                showlegend=False,
                hovertemplate="measured %{y:.3g} at %{x:.3g} times<extra></extra>",
                **look,
            )
        plot.add_hline(y=training.validity[0].bound, line={"color": ZERO, "dash": "dash"}, **where)
        plot.add_vline(x=1, line={"color": ZERO, "dash": "dot"}, **where)
    return Figure(
        "validity",
        "How far does first order carry?",
        " ".join(map(_message, trainings)),
        "Lines: what first order would leave unexplained of the change of log π, were the change "
        "of the weights so many times as large, from logits to second order. Dots: measured with "
        "the weights moved that far. Dashed: the bound that ends first order’s radius; dotted: the "
        "training as it was.",
        plot,
    )


def _shown(training: Training) -> list[tuple[Validity, str, str]]:
    """The last step, and all steps together where more than one was recorded."""
    last = max(own.step for own in training.validity)
    names = {True: ("the last recorded step", CHOSEN), False: ("all steps together", REJECTED)}
    return [(own, *names[own.since is None]) for own in training.validity if own.step == last]


def _message(training: Training) -> str:
    """What share first order explains, as trained, and at which rate that ends."""
    objective = objective_name(training.stage)
    *_, (own, _, _) = _shown(training)
    if own.since is None:
        did, seen = f"step {own.step} of {objective} did", "the weights before it"
    else:
        steps = own.step - own.since + 1
        did, seen = f"the {steps} steps of {objective} did together", "their start"
    left = f"Seen from {seen}, first order leaves {_percent(own.unexplained)} of what {did}"
    radius = _rate_radius(training)
    if math.isnan(radius):
        return f"{left} unexplained."
    return (
        f"{left} unexplained; at {number(radius, 2)} times the learning rate it would leave "
        f"{_percent(own.bound)}."
    )


def _rate_radius(training: Training) -> float:
    """Of all steps up to the last recorded one together."""
    first = min(own.step for own in training.validity)
    changes = [own for own in training.validity if own.since == first or own.step == first]
    rates = {
        line.step - 1: line.metrics["train/learning_rate"]
        for line in training.metrics
        if "train/learning_rate" in line.metrics
    }
    return rate_radius(changes, rates)


def _percent(share: float) -> str:
    return f"{number(100 * share, 2)}%"


def validity_section(trainings: Sequence[Training]) -> Section | None:
    """A row for every recorded step, and for all steps up to it: radius, and what bends."""
    rows = [
        (
            objective_name(training.stage),
            f"step {own.step}" if own.since is None else f"steps {own.since}–{own.step}",
            _percent(own.unexplained),
            number(own.predicted, 2),
            number(own.measured, 2),
            _bending(own),
        )
        for training in trainings
        for own in training.validity
    ]
    if not rows:
        return None
    bound = _percent(next(own.bound for training in trainings for own in training.validity))
    heads = ("training", "change", "unexplained", "radius, predicted", "measured", "what bends")
    return section(
        "radius",
        "Where first order ends",
        f"The radius is the multiple of the change at which first order leaves {bound} "
        "unexplained. What bends: the prediction’s own change (softmax, A), or the change of the "
        "network’s Jacobian, and with it of K, by parameter block; shares of the second order, "
        "which add up to 100%. Negative ones straighten.",
        table(heads, rows),
    )


def outside_radius(training: Training) -> str:
    """Names the recorded steps whose change lies outside first order's radius, if any."""
    outside = [
        own.step for own in training.validity if own.since is None and own.unexplained > own.bound
    ]
    if not outside:
        return ""
    steps = f"Step{'s' if len(outside) > 1 else ''} {join([*map(str, outside)])}"
    return (
        f" {steps} of {objective_name(training.stage)} moved too far for first order at the "
        "weights before it; see where first order ends."
    )


def _bending(own: Validity) -> str:
    """The largest parts of the second order, by their size."""
    shares = {part.part: part.share for part in own.parts if abs(part.share) >= _SMALLEST}
    largest = sorted(shares, key=lambda part: -abs(shares[part]))[:_PARTS]
    return ", ".join(f"{part} {true_minus(f'{100 * shares[part]:+.0f}')}%" for part in largest)
