"""The figures of forces between classes: which classes move together, and whether that lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from numpy import ndarray

from dynolab.chapters.classification.force_claims import NETWORKS, off_diagonal, window
from dynolab.chapters.classification.rows import (
    ClassifierState,
    ClassInfluence,
    Divergence,
    Grid,
    KernelRanks,
)
from dynolab.forces.kernel.stability import THRESHOLD
from dynolab.report.figure import CELLS, Figure, spread, subplots
from dynolab.report.lines import Line, LinePanel, line_plot
from dynolab.report.style import CHOSEN, DIVERGING, MUTED, SEQUENTIAL
from dynolab.report.text import join, number, true_minus
from dynolab.statistics import mean_interval

_PAIRS = 3
Row = ClassifierState | ClassInfluence


def _mean(rows: Iterable[Row], value: Callable[..., Grid]) -> Float[ndarray, "classes classes"]:
    means: ndarray = np.mean([value(row) for row in rows], axis=0)
    return means


def busiest(states: Sequence[ClassifierState]) -> list[ClassifierState]:
    """The states of the epoch whose updates move their own classes most, mean over seeds."""
    by_epoch = [
        [row for row in states if row.epoch == epoch]
        for epoch in sorted({row.epoch for row in states})
    ]
    return max(by_epoch, key=lambda own: float(np.diag(_mean(own, lambda row: row.pulls)).mean()))


def pull_figure(states: Sequence[ClassifierState]) -> Figure:
    """What an update on a class does to every class's images, beside what the network predicts.

    `states`: of one network at one learning rate, at one epoch, seed by seed.
    """
    pulls = _mean(states, lambda row: row.pulls)
    plot = subplots(
        ["Δp of the updated class", "Mean probability of that class"],
        460,
        space=0.14,
        margin={"l": 64, "r": 24, "t": 56, "b": 60},
        y_title="class",
    )
    predictions = _mean(states, lambda row: row.predictions).T
    _add_cells(plot, 1, pulls, "images of class", "class", "+.2e", diverging=True)
    _add_cells(plot, 2, predictions, "images of class", "class", ".2f")
    order = np.argsort(off_diagonal(pulls))[::-1][:_PAIRS]
    names = [divmod(int(place), len(pulls) - 1) for place in order]
    pairs = [f"a {u} raises “{u}” on {o + (o >= u)}s" for u, o in names]
    return Figure(
        "pulls",
        "What one update does: the pairing of classes",
        f"After epoch {states[0].epoch}, when updates move most, an update raises its class on "
        f"images of that class by {number(float(np.diag(pulls).mean()), 2, sign=True)}. The "
        f"largest effects on other classes: {join(pairs)}.",
        f"{_of(states)}. Rows: class of the updated training image; columns: classes of watched "
        "test images. Left: first-order change of the probability of the row’s class by the "
        "image’s part of a step; right: probability of the row’s class on the column’s images at "
        "that moment. As Δp = p Δ log p, the right is a factor of the left: that they look alike "
        "shows only that Δ log p does not oppose it.",
        plot,
    )


def kernel_figure(states: Sequence[ClassifierState], ranks: Sequence[KernelRanks]) -> Figure:
    """‖K‖ of all pairs of classes at several epochs; of one network and learning rate."""
    epochs = sorted({row.epoch for row in states})
    shown = spread(epochs)
    plot = subplots(
        [f"epoch {epoch}" for epoch in shown],
        460,
        space=0.05,
        margin={"l": 64, "r": 24, "t": 56, "b": 60},
        y_title="images of class",
    )
    for col, epoch in enumerate(shown, start=1):
        sizes = np.log10(_mean([s for s in states if s.epoch == epoch], lambda row: row.kernel))
        _add_cells(plot, col, sizes, "images of class", "images of class", ".2f")
    plot.update_traces(showscale=False)
    first, last = window(epochs)
    rows = [row for row in ranks if (row.first, row.second) == (first, last)]
    growth = float(np.mean([row.growth for row in rows]))
    rho = float(np.mean([row.correlation for row in rows]))
    return Figure(
        "kernel",
        "Which classes are coupled, over training",
        true_minus(
            f"From epoch {first} to {last} the median ‖K‖ changes by {growth:+.0%}, and the order "
            f"of the pairs of classes keeps a rank correlation of {number(rho, 2)}."
        ),
        f"{_of(states)}. Cells: ‖CKC‖ between the images of two classes, mean over pairs of "
        "images, on a log scale of each panel’s own; hover for values.",
        plot,
    )


def rank_figure(ranks: Sequence[KernelRanks], diverged: Sequence[Divergence]) -> Figure:
    """Rank correlation with the last epoch, network by network, over learning rates."""
    last = max(row.second for row in ranks)
    networks = list(dict.fromkeys(row.network for row in ranks))
    panels = [
        LinePanel(
            NETWORKS[network],
            "epoch",
            f"ρ with epoch {last}",
            _by_rate(
                (row.learning_rate, row.first, row.correlation)
                for row in ranks
                if row.network == network and row.second == last
            ),
        )
        for network in networks
    ]
    plot = line_plot(panels)
    plot.add_hline(y=THRESHOLD, line={"dash": "dot", "width": 1.2, "color": MUTED})
    return Figure(
        "ranks",
        "Do the same classes stay coupled?",
        _order_message(ranks, networks) + _divergence_message(diverged),
        "Spearman’s rank correlation of ‖CKC‖ over pairs of classes between an epoch and the last; "
        f"dotted: {THRESHOLD}, below which the assumption that the kernel’s order lasts has broken "
        "down. Means over seeds with 95% t-intervals.",
        plot,
    )


def _by_rate(values: Iterable[tuple[float, int, float]]) -> list[Line]:
    """Means over seeds by epoch, one line per learning rate; `values`: (rate, epoch, value)."""
    every = list(values)
    epochs = sorted({epoch for _, epoch, _ in every})
    return [
        Line(
            f"η = {rate:g}",
            epochs,
            [
                mean_interval(np.array([v for r, e, v in every if (r, e) == (rate, epoch)]))
                for epoch in epochs
            ],
        )
        for rate in sorted({rate for rate, _, _ in every})
    ]


def _order_message(ranks: Sequence[KernelRanks], networks: Sequence[str]) -> str:
    first, last = window(sorted({e for row in ranks for e in (row.first, row.second)}))
    parts = []
    for network in networks:
        lines = _by_rate(
            (row.learning_rate, row.first, row.correlation)
            for row in ranks
            if row.network == network and (row.first, row.second) == (first, last)
        )
        broken = [
            line.name.removeprefix("η = ") for line in lines if line.intervals[0].mean < THRESHOLD
        ]
        held = "holds at every learning rate" if not broken else f"breaks at η = {join(broken)}"
        parts.append(f"{NETWORKS[network]} {held}")
    return f"From epoch {first} to {last} the order of ‖K‖ over pairs of classes: {join(parts)}."


def _divergence_message(diverged: Sequence[Divergence]) -> str:
    parts = []
    for network, eta in dict.fromkeys((row.network, row.learning_rate) for row in diverged):
        steps = [row.step for row in diverged if (row.network, row.learning_rate) == (network, eta)]
        parts.append(
            f"{NETWORKS[network]} diverged at η = {eta:g} (seeds: {len(steps)}, first at step "
            f"{min(steps)}), which is left out"
        )
    return f" {join(parts)}." if parts else ""


def step_figure(states: Sequence[ClassifierState]) -> Figure:
    """How much of a step's change first order leaves unexplained, by epoch and learning rate."""
    panels = [
        LinePanel(
            NETWORKS[network],
            "epoch",
            "1 − R²",
            _by_rate(
                (row.learning_rate, row.epoch, row.unexplained)
                for row in states
                if row.network == network and np.isfinite(row.unexplained)
            ),
            zero=True,
        )
        for network in dict.fromkeys(row.network for row in states)
    ]
    means = [
        f"{number(float(np.mean([left.mean for left in line.intervals])), 2)} at {line.name}"
        for line in panels[0].lines
    ]
    return Figure(
        "steps",
        "How far first order reaches",
        f"Share of {panels[0].title}’s steps that first order leaves unexplained, mean over "
        f"epochs: {join(means)}.",
        "1 − R² of the change of all watched log-probabilities over one step, predicted by A, K "
        "and G of its batch: 0 is exact, 1 no better than no change. Means over seeds with 95% "
        "t-intervals.",
        line_plot(panels),
    )


def influence_figure(influences: Sequence[ClassInfluence]) -> Figure:
    """Accumulated influence of every class on every other, and the measured change."""
    total = _mean(influences, lambda row: row.from_class)
    measured = np.mean([row.measured for row in influences], axis=0)
    plot = subplots(
        ["Σ of forces on the label’s log p", ""],
        460,
        space=0.16,
        margin={"l": 64, "r": 24, "t": 56, "b": 60},
        barmode="group",
        legend={"x": 0.58, "y": 1.12, "orientation": "h"},
        y_title="training images of class",
    )
    cells = "images of class", "training images of class"
    _add_cells(plot, 1, total, *cells, "+.2f", diverging=True)
    for name, values, color in (
        ("forces, summed", total.sum(0), CHOSEN),
        ("measured", measured, DIVERGING[0][1]),
    ):
        plot.add_bar(
            x=[str(n) for n in range(len(total))],
            y=values.round(4),
            name=name,
            marker={"color": color},
            row=1,
            col=2,
        )
    plot.update_xaxes(type="category", title_text="images of class", col=2)
    plot.update_yaxes(title_text="Δ log p (nats)", col=2)
    epoch = influences[0].epoch
    own, others = float(np.diag(total).mean()), float(off_diagonal(total).sum() / len(total))
    return Figure(
        "influence",
        "What the forces add up to",
        f"Over {epoch} epochs a class’s own training images raise its watched images by "
        f"{number(own, 3, sign=True)} nats, all other classes’ move them by "
        f"{number(others, 3, sign=True)}; the measured total is "
        f"{number(float(measured.mean()), 3, sign=True)}.",
        "Left: −η/B Σ A K G of all steps, summed by the class of the training image (row), on the "
        "label’s log p of the watched images (column), nats, mean over seeds. Right: the sum of "
        "each column beside the measured change.",
        plot,
    )


def _add_cells(
    plot: go.Figure,
    col: int,
    values: Float[ndarray, "rows columns"],
    across: str,
    down: str,
    form: str,
    *,
    diverging: bool = False,
) -> None:
    """Adds a panel of classes by classes; off-diagonal values set a diverging scale's range."""
    names = [str(n) for n in range(len(values))]
    end = float(np.abs(off_diagonal(values)).max()) if diverging else None
    right = plot.layout[f"xaxis{col if col > 1 else ''}"].domain[1]
    plot.add_heatmap(
        z=values.round(6),
        x=names,
        y=names,
        colorscale=DIVERGING if diverging else SEQUENTIAL,
        zmin=None if end is None else -end,
        zmax=end,
        xgap=1,
        ygap=1,
        colorbar={"thickness": 10, "x": right + 0.01, "nticks": 5},
        hovertemplate=f"{down} %{{y}}, {across} %{{x}}: %{{z:{form}}}<extra></extra>",
        row=1,
        col=col,
    )
    plot.update_xaxes(type="category", title_text=across, col=col, **CELLS)
    plot.update_yaxes(type="category", autorange="reversed", col=col, **CELLS)


def _of(states: Sequence[ClassifierState]) -> str:
    first, seeds = states[0], len({state.seed for state in states})
    return f"{NETWORKS[first.network]}, η = {first.learning_rate:g}, mean over {seeds} seeds"
