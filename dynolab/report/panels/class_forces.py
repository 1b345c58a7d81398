"""The figures of forces between classes: what moves together, and whether it stays so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from numpy import ndarray

from dynolab.claims.class_forces import NETWORKS, beside, window
from dynolab.forces.kernel.stability import THRESHOLD
from dynolab.report.panels.interval_lines import Line, LinePanel, line_figure
from dynolab.report.style import (
    CHOSEN,
    DIVERGING,
    FLAT,
    MUTED,
    Plate,
    axis_key,
    axis_name,
    base_layout,
    columns,
    join,
    number,
    panel_title,
)
from dynolab.results.classification import (
    ClassifierState,
    ClassInfluence,
    Divergence,
    Grid,
    KernelRanks,
)
from dynolab.statistics import mean_interval

_SEQUENTIAL = [[0.0, FLAT], [1.0, CHOSEN]]
_PAIRS = 3


def busiest(states: Sequence[ClassifierState]) -> list[ClassifierState]:
    """Those of the epoch whose updates move their own classes most, in the mean over seeds."""
    by_epoch = {
        epoch: [one for one in states if one.epoch == epoch]
        for epoch in sorted({one.epoch for one in states})
    }
    return max(
        by_epoch.values(),
        key=lambda some: float(np.diag(_mean(some, lambda one: one.pulls)).mean()),
    )


def pull_plate(states: Sequence[ClassifierState]) -> Plate:
    """What an update on a class does to every class's images, beside what the network predicts.

    `states`: of one network at one learning rate, at one epoch, seed by seed.
    """
    pulls = _mean(states, lambda one: one.pulls)
    predictions = _mean(states, lambda one: one.predictions).T
    figure = _grids(
        [
            ("Δp of the class that is updated on", pulls, DIVERGING, "+.2e"),
            ("Mean probability of that class", predictions, _SEQUENTIAL, ".2f"),
        ],
        "images of class",
        "class",
    )
    order = np.argsort(beside(pulls))[::-1][:_PAIRS]
    classes = len(pulls)
    names = [divmod(int(place), classes - 1) for place in order]
    pairs = [f"a {u} lifts “{u}” on {o + (o >= u)}s" for u, o in names]
    return Plate(
        "pulls",
        "What one update does: the pairing of classes",
        f"After epoch {states[0].epoch}, when updates move most, one lifts its class on images of "
        f"that class by {number(float(np.diag(pulls).mean()), 2, sign=True)}. Beside that, most "
        f"of all {join(pairs)}.",
        f"{_of(states)}. Rows: the class of the training image that an update is made on; columns: "
        "classes of watched test images. Left: first-order change of the row’s probability by the "
        "image’s share of a step; right: how far the column’s images are taken for the row’s class "
        "at that moment. As Δp = p Δ log p, the right is a factor of the left: that they go "
        "together says no more than that Δ log p does not go against it.",
        figure,
    )


def kernel_plate(states: Sequence[ClassifierState], ranks: Sequence[KernelRanks]) -> Plate:
    """‖K‖ of all pairs of classes at several epochs; of one network and learning rate."""
    epochs = sorted({one.epoch for one in states})
    shown = _spread(epochs)
    panels = [
        (
            f"epoch {epoch}",
            np.log10(_mean([s for s in states if s.epoch == epoch], lambda one: one.kernel)),
            _SEQUENTIAL,
            ".2f",
        )
        for epoch in shown
    ]
    first, last = window(epochs)
    rows = [one for one in ranks if (one.first, one.second) == (first, last)]
    growth = float(np.mean([one.growth for one in rows]))
    rho = float(np.mean([one.correlation for one in rows]))
    return Plate(
        "kernel",
        "Which classes are coupled, over training",
        f"From epoch {first} to {last} the median ‖K‖ changes by {growth:+.0%}, and the order of "
        f"the pairs of classes keeps a rank correlation of {number(rho, 2)}.".replace("-", "−"),
        f"{_of(states)}. Cells: ‖CKC‖ between the images of two classes, mean over pairs of "
        "images, on a scale of powers of ten of each panel’s own; hover for values.",
        _grids(panels, "images of class", "images of class", own_scales=True),
    )


def rank_plate(ranks: Sequence[KernelRanks], diverged: Sequence[Divergence]) -> Plate:
    """Rank correlation with the last epoch, network by network, over learning rates."""
    last = max(one.second for one in ranks)
    networks = list(dict.fromkeys(one.network for one in ranks))
    panels = []
    for network in networks:
        own = [one for one in ranks if one.network == network and one.second == last]
        rates = sorted({one.learning_rate for one in own})
        epochs = sorted({one.first for one in own})
        lines = [
            Line(
                f"η = {eta:g}",
                epochs,
                [
                    mean_interval(
                        np.array(
                            [
                                one.correlation
                                for one in own
                                if (one.learning_rate, one.first) == (eta, epoch)
                            ]
                        )
                    )
                    for epoch in epochs
                ],
            )
            for eta in rates
        ]
        panels.append(LinePanel(_name(network), "epoch", f"ρ with epoch {last}", lines))
    figure = line_figure(panels)
    for index in range(1, len(panels) + 1):
        figure.add_shape(
            type="line",
            x0=0,
            x1=1,
            y0=THRESHOLD,
            y1=THRESHOLD,
            xref=f"{axis_name('x', index)} domain",
            yref=axis_name("y", index),
            line={"dash": "dot", "width": 1.2, "color": MUTED},
        )
    return Plate(
        "ranks",
        "Do the same classes stay coupled?",
        _where_it_holds(ranks, networks) + _where_it_ends(diverged),
        "Spearman’s rank correlation of ‖CKC‖ over pairs of classes between an epoch and the last; "
        f"dotted: {THRESHOLD}, below which the assumption that the kernel’s order stays has broken "
        "down. Means over seeds with 95% t-intervals.",
        figure,
    )


def _where_it_holds(ranks: Sequence[KernelRanks], networks: Sequence[str]) -> str:
    first, last = window(sorted({e for one in ranks for e in (one.first, one.second)}))
    told = []
    for network in networks:
        own = [
            one
            for one in ranks
            if one.network == network and (one.first, one.second) == (first, last)
        ]
        broken = []
        for eta in sorted({one.learning_rate for one in own}):
            found = mean_interval(
                np.array([one.correlation for one in own if one.learning_rate == eta])
            )
            if found.mean < THRESHOLD:
                broken.append(f"{eta:g}")
        held = "holds at every learning rate" if not broken else f"breaks at η = {join(broken)}"
        told.append(f"{_name(network)} {held}")
    return f"From epoch {first} to {last} the order of ‖K‖ over pairs of classes: {join(told)}."


def _where_it_ends(diverged: Sequence[Divergence]) -> str:
    told = []
    for network, eta in dict.fromkeys((one.network, one.learning_rate) for one in diverged):
        steps = [one.step for one in diverged if (one.network, one.learning_rate) == (network, eta)]
        told.append(
            f"{_name(network)} diverged at η = {eta:g} (seeds: {len(steps)}, first at step "
            f"{min(steps)}), which is left out"
        )
    return f" {join(told)}." if told else ""


def step_plate(states: Sequence[ClassifierState]) -> Plate:
    """How much of a step's change first order leaves over, over training and learning rates."""
    networks = list(dict.fromkeys(one.network for one in states))
    panels = []
    for network in networks:
        own = [one for one in states if one.network == network and np.isfinite(one.unexplained)]
        epochs = sorted({one.epoch for one in own})
        lines = [
            Line(
                f"η = {eta:g}",
                epochs,
                [
                    mean_interval(
                        np.array(
                            [
                                one.unexplained
                                for one in own
                                if (one.learning_rate, one.epoch) == (eta, epoch)
                            ]
                        )
                    )
                    for epoch in epochs
                ],
            )
            for eta in sorted({one.learning_rate for one in own})
        ]
        panels.append(LinePanel(_name(network), "epoch", "1 − R²", lines, zero=True))
    told = [
        f"{number(float(np.mean([one.mean for one in line.intervals])), 2)} at {line.name}"
        for line in panels[0].lines
    ]
    return Plate(
        "steps",
        "How far first order reaches",
        f"{panels[0].title}’s steps leave over, mean over epochs: {join(told)}.",
        "1 − R² of the change of all watched log-probabilities over one step, predicted by A, K "
        "and G of its batch: 0 is exact, 1 no better than no change. Means over seeds with 95% "
        "t-intervals.",
        line_figure(panels),
    )


def influence_plate(influences: Sequence[ClassInfluence]) -> Plate | None:
    """Accumulated influence of every class on every other, and what really happened."""
    if not influences:
        return None
    total = _mean(influences, lambda one: one.from_class)
    measured = np.mean([one.measured for one in influences], axis=0)
    epoch = influences[0].epoch
    figure = _grids(
        [("Σ of forces on the label’s log p", total, DIVERGING, "+.2f")],
        "images of class",
        "training images of class",
    )
    names = [str(n) for n in range(len(total))]
    left, right = columns(2, 0.16)
    figure.update_layout(
        {
            axis_key("x", 1): {"domain": left},
            axis_key("x", 2): {
                "domain": right,
                "anchor": "y2",
                "type": "category",
                "title": {"text": "images of class"},
            },
            axis_key("y", 2): {"anchor": "x2", "title": {"text": "Δ log p (nats)"}},
        },
        barmode="group",
        legend={"x": right[0], "y": 1.12, "orientation": "h"},
    )
    figure.data[0].colorbar.x = left[1] + 0.01
    for name, values, color in (
        ("forces, summed", total.sum(0), CHOSEN),
        ("measured", measured, DIVERGING[0][1]),
    ):
        figure.add_bar(
            x=names, y=values.round(4), name=name, marker={"color": color}, xaxis="x2", yaxis="y2"
        )
    figure.update_layout(showlegend=True)
    own, others = float(np.diag(total).mean()), float(beside(total).sum() / len(total))
    return Plate(
        "influence",
        "What added up",
        f"Over {epoch} epochs a class’s own training images lift its watched images by "
        f"{number(own, 3, sign=True)} nats, all other classes’ move them by "
        f"{number(others, 3, sign=True)}; measured, all in all, "
        f"{number(float(measured.mean()), 3, sign=True)}.",
        "Left: −η/B Σ A K G of all steps, summed by the class of the training image (row), on the "
        "label’s log p of the watched images (column), nats, mean over seeds. Right: the sum of "
        "each column beside what training really did.",
        figure,
    )


def _grids(
    panels: Sequence[tuple[str, Float[ndarray, "rows columns"], list[list[object]], str]],
    x_title: str,
    y_title: str,
    *,
    own_scales: bool = False,
) -> go.Figure:
    figure = go.Figure()
    layout = base_layout(460, margin={"l": 64, "r": 24, "t": 56, "b": 60})
    annotations = []
    domains = columns(len(panels), 0.05 if own_scales else 0.14)
    for index, ((title, values, scale, form), domain) in enumerate(
        zip(panels, domains, strict=True), start=1
    ):
        names = [str(n) for n in range(len(values))]
        most = float(np.abs(beside(values) if scale is DIVERGING else values).max())
        ends = {"zmin": -most, "zmax": most} if scale is DIVERGING else {}
        figure.add_heatmap(
            z=values.round(6),
            x=names,
            y=names,
            colorscale=scale,
            xgap=1,
            ygap=1,
            **ends,
            xaxis=axis_name("x", index),
            yaxis=axis_name("y", index),
            showscale=not own_scales,
            colorbar={"thickness": 10, "x": domain[1] + 0.01, "nticks": 5},
            hovertemplate=f"{y_title} %{{y}}, {x_title} %{{x}}: %{{z:{form}}}<extra></extra>",
        )
        ticks = {"type": "category", "showgrid": False, "zeroline": False}
        layout[axis_key("x", index)] = {
            "domain": domain,
            "anchor": axis_name("y", index),
            "title": {"text": x_title},
            **ticks,
        }
        layout[axis_key("y", index)] = {
            "anchor": axis_name("x", index),
            "autorange": "reversed",
            "title": {"text": y_title if index == 1 else ""},
            **ticks,
        }
        annotations.append(panel_title(title, domain[0], 1.02))
    layout["annotations"] = annotations
    figure.update_layout(**layout)
    return figure


Stated = ClassifierState | ClassInfluence


def _mean(rows: Sequence[Stated], value: Callable[..., Grid]) -> Float[ndarray, "classes classes"]:
    found: ndarray = np.mean([value(row) for row in rows], axis=0)
    return found


def _of(states: Sequence[ClassifierState]) -> str:
    one, seeds = states[0], len({state.seed for state in states})
    return f"{_name(one.network)}, η = {one.learning_rate:g}, mean over {seeds} seeds"


def _name(network: str) -> str:
    return NETWORKS[network]


def _spread(epochs: Sequence[int], most: int = 4) -> list[int]:
    """At most so many of them, both ends among these."""
    if len(epochs) <= most:
        return list(epochs)
    return [epochs[round(i * (len(epochs) - 1) / (most - 1))] for i in range(most)]
