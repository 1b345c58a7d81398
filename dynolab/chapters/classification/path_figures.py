"""The figures of learning paths in the probability simplex."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dynolab.chapters.classification.path_claims import TITLES, curves
from dynolab.chapters.classification.path_study import GROUPS
from dynolab.chapters.classification.rows import (
    Difficulty,
    EpochInfluence,
    ExamplePath,
    PathData,
    PathScores,
)
from dynolab.report.figure import LEGEND_BELOW, Figure, base_layout, panel_title, subplots
from dynolab.report.lines import Line, LinePanel, line_plot
from dynolab.report.style import BEST, CHOSEN, GRID, INK, MUTED, PAPER, REJECTED, UP, ZERO
from dynolab.report.text import join, number, with_interval
from dynolab.statistics import mean_interval

COLORS: dict[Difficulty, str] = {
    "easy": UP,
    "medium": CHOSEN,
    "hard": BEST,
    "mislabelled": REJECTED,
}
_SHAPES = ("circle", "square", "diamond")


def simplex_figure(paths: Sequence[ExamplePath], data: PathData) -> Figure | None:
    """Paths of typical examples of every difficulty, one triangle each; the label is on top."""
    own = [path for path in paths if path.data == data]
    groups = [group for group in GROUPS if any(path.group == group for path in own)]
    if not groups:
        return None
    plot = make_subplots(
        cols=len(groups), specs=[[{"type": "ternary"}] * len(groups)], horizontal_spacing=0.07
    )
    plot.update_layout(
        base_layout(380, margin={"l": 30, "r": 30, "t": 70, "b": 60}, showlegend=False)
    )
    for col, group in enumerate(groups, start=1):
        for place, path in enumerate(path for path in own if path.group == group):
            _add_path(plot, path, col, _SHAPES[place % len(_SHAPES)], COLORS[group])
        left = plot.get_subplot(1, col).domain.x[0]
        plot.add_annotation(panel_title(group, left, 1.06))
    plot.update_ternaries(domain_y=[0, 0.9], bgcolor=PAPER, sum=1)
    for axis, title in {"aaxis": "label", "baxis": "rival", "caxis": "rest"}.items():
        look = {
            "ticks": "",
            "showticklabels": False,
            "gridcolor": GRID,
            "linecolor": ZERO,
            "title": {"text": title, "font": {"size": 11, "color": MUTED}},
        }
        plot.update_ternaries({axis: look})
    zigzags = [
        f"{group} {number(float(np.mean([p.zigzag for p in own if p.group == group])), 2)}"
        for group in groups
    ]
    return Figure(
        f"simplex-{data}",
        f"Learning paths: {TITLES[data]}",
        f"The excess length of the paths of these typical examples over straight ones (zig-zag): "
        f"{join(zigzags)}.",
        "A triangle’s top is certainty of the given label, its left corner that of the label’s "
        "strongest rival (for mislabelled examples the true class), its right corner that of all "
        "other classes. Circles: start; stars: end; crosses: p*. One seed; the examples are those "
        "in the middle of their group by zig-zag.",
        plot,
    )


def _add_path(plot: go.Figure, path: ExamplePath, col: int, shape: str, color: str) -> None:
    order = _label_first(path)
    a, b, c = (np.array(path.path)[:, k].round(5) for k in order)
    where = {"showlegend": False, "row": 1, "col": col}
    plot.add_scatterternary(
        a=a,
        b=b,
        c=c,
        mode="lines+markers",
        line={"color": color, "width": 1.8},
        marker={"color": color, "size": 4, "symbol": shape},
        opacity=0.85,
        text=[f"epoch {epoch}: label {label:.2f}" for epoch, label in enumerate(a)],
        hovertemplate="%{text}<extra></extra>",
        **where,
    )
    for symbol, at, ink, size in (("circle-open", 0, INK, 9), ("star", -1, color, 13)):
        plot.add_scatterternary(
            a=[a[at]],
            b=[b[at]],
            c=[c[at]],
            mode="markers",
            hoverinfo="skip",
            marker={"symbol": symbol, "color": ink, "size": size},
            **where,
        )
    truth = [[path.truth[k]] for k in order]
    plot.add_scatterternary(
        a=truth[0],
        b=truth[1],
        c=truth[2],
        mode="markers",
        marker={"symbol": "x", "color": INK, "size": 7},
        hovertemplate="p*<extra></extra>",
        **where,
    )


def _label_first(path: ExamplePath) -> tuple[int, int, int]:
    """The classes' order: the label first, then its strongest rival."""
    others = [k for k in range(3) if k != path.label]
    if path.names[-1] != "others":
        others.sort(key=lambda k: -path.truth[k])
    return path.label, others[0], others[1]


def zigzag_figure(scores: Sequence[PathScores]) -> Figure:
    """Zig-zag against base difficulty, one panel per data set; wrong labels in their own colour."""
    known = list(dict.fromkeys(row.data for row in scores))
    plot = subplots(
        [TITLES[data] for data in known],
        400,
        margin={"l": 64, "r": 24, "t": 56, "b": 84},
        legend=LEGEND_BELOW,
        x={"title_text": "base difficulty ‖e_y − p*‖₂"},
        y={"title_text": "zig-zag"},
    )
    areas = []
    for col, data in enumerate(known, start=1):
        rows = [row for row in scores if row.data == data]
        first = rows[0]
        x, y, wrong = map(np.array, (first.difficulty, first.zigzag, first.wrong))
        for name, mask, color in (
            ("right label", ~wrong, CHOSEN),
            ("wrong label", wrong, REJECTED),
        ):
            plot.add_scatter(
                x=x[mask].round(4),
                y=y[mask].round(4),
                mode="markers",
                name=name,
                legendgroup=name,
                showlegend=col == 1,
                marker={"color": color, "size": 5, "opacity": 0.55},
                hovertemplate=f"{name}: difficulty %{{x:.2f}}, zig-zag %{{y:.2f}}<extra></extra>",
                row=1,
                col=col,
            )
        area = mean_interval(np.array([row.auc for row in rows]))
        areas.append(f"{with_interval(area, sign=False)} ({TITLES[data]})")
    return Figure(
        "zigzag",
        "Zig-zag finds hard and mislabelled examples",
        f"A wrong label’s path is longer than a right one’s with probability {join(areas)}.",
        "A dot: a training example of one seed. Zig-zag Z = Σ‖Δp̄‖ + ‖e_y − p̄_T‖ − ‖e_y − p̄_0‖: "
        "how much longer than straight its path to the given label is, including the last "
        "stretch even if training did not go there; a definition of this project. p* is exact for "
        "the toy data, from people where they labelled, and otherwise predicted by networks "
        "trained on other images.",
        plot,
    )


def epoch_figure(epochs: Sequence[EpochInfluence], data: PathData) -> Figure | None:
    """What an example's own updates and the others' add up to, group by group."""
    panels, sums = [], []
    for group in GROUPS:
        influence = curves([row for row in epochs if row.data == data], group)
        if influence is None:
            continue
        times = range(influence["own"].shape[1])
        lines = [
            Line(name, times, [mean_interval(column) for column in influence[key].cumsum(1).T])
            for name, key in (("own updates", "own"), ("others’ updates", "others"))
        ]
        panels.append(LinePanel(group, "epoch", "Σ Δ log p of the label (nats)", lines, zero=True))
        if group in ("easy", "mislabelled"):
            own, others = (with_interval(line.intervals[-1]) for line in lines)
            sums.append(f"{group}: own {own}, others {others}")
    if not panels:
        return None
    return Figure(
        f"epochs-{data}",
        f"Own updates and the others’: {TITLES[data]}",
        f"In total, in nats: {'; '.join(sums)}.",
        "Sums over epochs, means over the examples of a group, then over seeds with 95% "
        "t-intervals. Own: what an example’s part of its step does by itself to its label’s log p; "
        "others: the rest of the epoch’s change. An own update raises the given label; "
        "the others’ updates show whether they agree with it.",
        line_plot(panels),
    )
