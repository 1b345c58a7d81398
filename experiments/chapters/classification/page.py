"""The page of classifiers: forces between classes, and learning paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray
from plotly.subplots import make_subplots

from dynolab.forces.kernel.stability import THRESHOLD
from dynolab.grouping import evenly_spaced
from dynolab.report.figure import (
    LEGEND_BELOW,
    Figure,
    base_layout,
    in_panel,
    panel_title,
    subplots,
)
from dynolab.report.page import Section, section, table
from dynolab.report.plots import LinePanel, line_plot
from dynolab.report.style import BEST, CHOSEN, INK, MUTED, PAPER, REJECTED, UP
from experiments.chapters.classification.claims import (
    DATA,
    NETWORKS,
    Tables,
    assess_forces,
    assess_paths,
    curves,
)
from experiments.chapters.classification.paths import GROUPS
from experiments.chapters.page import (
    BANDS,
    Chapter,
    Facts,
    grid_plot,
    lines_by,
    path_line,
    read_frame,
    select,
)

PATHS = "learning-paths"
_COLORS = {
    "easy": UP,
    "medium": CHOSEN,
    "hard": BEST,
    "mislabelled": REJECTED,
}


def classification(inputs: Mapping[str, Path], facts: Facts) -> Chapter:
    """Make the chapter of input `learning-paths`, if given, and of every network's forces."""
    networks = [folder for name, folder in inputs.items() if name != PATHS]
    forces = {
        name: read_frame(networks, f"{name}.jsonl")
        for name in ("states", "ranks", "influence", "diverged")
    }
    (rate,) = facts.learning_rates
    verdicts = assess_forces(forces, rate, digits=facts.digits)
    content = list(_force_figures(forces, rate))
    if PATHS in inputs:
        paths = {
            name: read_frame([inputs[PATHS]], f"{name}.jsonl")
            for name in ("scores", "epochs", "paths")
        }
        verdicts += assess_paths(paths)
        content += _path_figures(paths)
    return Chapter(
        title="How classifiers learn",
        lead="Effect of every step on images that are only watched: Δ log p = −η A K G, exact to "
        "first order, with the full kernel K of all pairs of images; and the path of every "
        "training example's prediction to its label.",
        verdicts=verdicts,
        content=content,
        source="Claims follow Ren & Sutherland (arXiv 2407.10490), Ren (arXiv 2509.19554, chapters "
        "3 and 4) and Ren, Guo & Sutherland (ICLR 2022); intervals are over seeds.",
    )


def _mean(grids: pd.Series) -> Float[ndarray, "rows columns"]:
    """Mean over a column of grids."""
    means: ndarray = np.mean(grids.to_list(), axis=0)
    return means


def _force_figures(forces: Tables, rate: float) -> Iterator[Figure | Section]:
    states, ranks = forces["states"], forces["ranks"]
    network = states.network.iloc[0]
    shown = f"{NETWORKS[network]}, η = {rate:g}, mean over seeds"
    of_run = select(states, network=network, learning_rate=rate)
    pulls = {epoch: _mean(rows.pulls) for epoch, rows in of_run.groupby("epoch")}
    busiest = max(pulls, key=lambda epoch: float(np.diag(pulls[epoch]).mean()))
    grids = {
        "Δp of the updated class": pulls[busiest],
        "Mean probability of that class": _mean(select(of_run, epoch=busiest).predictions).T,
    }
    yield Figure(
        "pulls",
        "What one update does: the pairing of classes",
        f"After epoch {busiest}, where updates move their own classes most.",
        f"{shown}. Rows: class of the updated training image; columns: classes of watched test "
        "images. Left: first-order change of the probability of the row's class by the image's "
        "part of a step; right: probability of the row's class on the column's images. As Δp = p Δ "
        "log p, the right is a factor of the left.",
        grid_plot(grids, "images of class", "class"),
    )
    sizes = {
        f"epoch {epoch}": np.log10(_mean(select(of_run, epoch=epoch).kernel))
        for epoch in evenly_spaced(list(pulls), 4)
    }
    yield Figure(
        "kernel",
        "Which classes are coupled, over training",
        "Mean ‖CKC‖ between the images of two classes, log₁₀.",
        f"{shown}. Mean over pairs of images; every panel has its own scale.",
        grid_plot(sizes, "images of class", "images of class").update_traces(showscale=False),
    )
    last = ranks.second.max()
    yield _by_rate(
        "ranks",
        "Do the same classes stay coupled?",
        f"ρ with epoch {last}",
        select(ranks, second=last).rename(columns={"first": "epoch"}),
        "correlation",
        "Spearman's rank correlation of ‖CKC‖ over pairs of classes between an epoch and the last; "
        f"dotted: {THRESHOLD}, below which the kernel's order has broken down.",
        THRESHOLD,
    )
    yield _by_rate(
        "steps",
        "How far first order reaches",
        "1 − R²",
        states,
        "unexplained",
        "1 − R² of the change of all watched log-probabilities over one step, predicted by A, K "
        "and G of its batch: 0 is exact, 1 no better than no change.",
    )
    if len(forces["diverged"]):
        yield section(
            "diverged",
            "Trainings that diverged",
            "Their learning rates are left out.",
            table(
                ("network", "learning rate", "seed", "step"),
                [
                    (NETWORKS[row.network], f"{row.learning_rate:g}", row.seed, row.step)
                    for row in forces["diverged"].itertuples()
                ],
                "snnn",
            ),
        )
    influence = select(forces["influence"], network=network)
    if len(influence):
        total = _mean(influence.from_class)
        yield Figure(
            "influence",
            "What the forces add up to",
            f"Sum over the first {influence.epoch.iloc[0]} epochs, by class, in nats.",
            "−η/B Σ A K G of all steps, summed by the class of the training image (row), on the "
            "label's log p of the watched images (column); mean over seeds.",
            grid_plot({"Σ of forces on the label's log p": total}, "images of class", "class"),
        )


def _by_rate(
    name: str,
    title: str,
    unit: str,
    rows: pd.DataFrame,
    value: str,
    note: str,
    dotted: float | None = None,
) -> Figure:
    """Means of a column by epoch for each learning rate, a panel for each network."""
    rows = rows.assign(line=[f"η = {rate:g}" for rate in rows.learning_rate])
    panels = [
        LinePanel(NETWORKS[network], "epoch", unit, lines_by(of_network, "line", "epoch", value))
        for network, of_network in rows.groupby("network", sort=False)
    ]
    plot = line_plot(panels)
    if dotted is not None:
        plot.add_hline(y=dotted, line={"dash": "dot", "width": 1.2, "color": MUTED})
    return Figure(name, title, "By epoch and learning rate.", f"{note} {BANDS}", plot)


def _path_figures(paths: Tables) -> Iterator[Figure]:
    data_sets = list(paths["scores"].data.unique())
    for data in data_sets:
        if len(of_data := select(paths["paths"], data=data)):
            yield _simplex(of_data, data)
    yield _zigzag(paths["scores"], data_sets)
    for data in data_sets:
        epochs = select(paths["epochs"], data=data)
        groups = {group: curve for group in GROUPS if (curve := curves(epochs, group))}
        panels = [
            LinePanel(
                group,
                "epoch",
                "Σ Δ log p of the label (nats)",
                [
                    path_line(label, range(curve[key].shape[1]), curve[key].cumsum(1))
                    for label, key in (("own updates", "own"), ("others' updates", "others"))
                ],
                zero=True,
            )
            for group, curve in groups.items()
        ]
        if panels:
            yield Figure(
                f"epochs-{data}",
                f"Own updates and the others': {DATA[data]}",
                "Sums over epochs, means over the examples of a difficulty.",
                "Own: effect of an example's part of its step on its own label's log p; others: "
                f"the rest of the epoch's change. {BANDS}",
                line_plot(panels),
            )


def _simplex(paths: pd.DataFrame, data: str) -> Figure:
    """Paths of typical examples of every difficulty, one triangle each; the label is on top."""
    groups = [group for group in GROUPS if group in set(paths.group)]
    plot = make_subplots(
        cols=len(groups), specs=[[{"type": "ternary"}] * len(groups)], horizontal_spacing=0.07
    )
    plot.update_layout(base_layout(380, margin={"l": 30, "r": 30, "t": 70, "b": 60}))
    for col, group in enumerate(groups, start=1):
        for path in select(paths, group=group).itertuples():
            others = [k for k in range(3) if k != path.label]
            if path.names[-1] != "others":  # the label's strongest rival comes first
                others.sort(key=lambda k: -path.truth[k])
            a, b, c = np.array([*path.path, path.truth])[:, [path.label, *others]].T.round(5)
            plot.add_scatterternary(
                a=a[:-1],
                b=b[:-1],
                c=c[:-1],
                mode="lines+markers",
                line={"color": _COLORS[group], "width": 1.8},
                marker={"size": [9, *[4] * (len(a) - 3), 13]},
                row=1,
                col=col,
            )
            cross = {"symbol": "x", "color": INK, "size": 7}
            plot.add_scatterternary(
                a=a[-1:], b=b[-1:], c=c[-1:], mode="markers", marker=cross, row=1, col=col
            )
        left = plot.get_subplot(1, col).domain.x[0]
        plot.add_annotation(panel_title(group, left, 1.06))
    plot.update_layout(showlegend=False)
    plot.update_ternaries(domain_y=[0, 0.9], bgcolor=PAPER, sum=1)
    for axis, corner in {"aaxis": "label", "baxis": "rival", "caxis": "rest"}.items():
        plot.update_ternaries({axis: {"showticklabels": False, "ticks": "", "title": corner}})
    return Figure(
        f"simplex-{data}",
        f"Learning paths: {DATA[data]}",
        "Paths of the examples in the middle of their group by zig-zag; one seed.",
        "A triangle's top is certainty of the given label, its left corner that of the label's "
        "strongest rival (for mislabelled examples the true class), its right corner that of all "
        "other classes. Paths begin at the middle-sized and end at the large dots; crosses: p*.",
        plot,
    )


def _zigzag(scores: pd.DataFrame, data_sets: Sequence[str]) -> Figure:
    """Zig-zag against base difficulty, one panel per data set; wrong labels in their own colour."""
    plot = subplots(
        [DATA[data] for data in data_sets],
        400,
        margin={"l": 64, "r": 24, "t": 56, "b": 84},
        legend=LEGEND_BELOW,
        x={"title_text": "base difficulty ‖e_y − p*‖₂"},
        y={"title_text": "zig-zag"},
    )
    for col, data in enumerate(data_sets, start=1):
        first = select(scores, data=data).iloc[0]
        x, y, wrong = map(np.array, (first.difficulty, first.zigzag, first.wrong))
        for name, mask, color in (
            ("right label", ~wrong, CHOSEN),
            ("wrong label", wrong, REJECTED),
        ):
            plot.add_scatter(
                x=x[mask].round(4),
                y=y[mask].round(4),
                mode="markers",
                **in_panel(col, name),
                marker={"color": color, "size": 5, "opacity": 0.55},
            )
    return Figure(
        "zigzag",
        "Zig-zag finds hard and mislabelled examples",
        "A dot: a training example of one seed.",
        "Zig-zag Z = Σ‖Δp̄‖ + ‖e_y − p̄_T‖ − ‖e_y − p̄_0‖: how much longer than straight its path "
        "to the given label is; a definition of this project. p* is exact for the toy data, from "
        "people where they labelled, and otherwise predicted by networks trained on other images.",
        plot,
    )
