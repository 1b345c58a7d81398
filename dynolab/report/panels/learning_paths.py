"""The figures of learning paths in the probability simplex."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from dynolab.chapters.classification.path_study import GROUPS
from dynolab.claims.learning_paths import TITLES, curves
from dynolab.report.panels.interval_lines import Line, LinePanel, line_figure
from dynolab.report.style import (
    BEST,
    CHOSEN,
    GRID,
    INK,
    MUTED,
    PAPER,
    REJECTED,
    UP,
    ZERO,
    Plate,
    base_layout,
    columns,
    join,
    number,
    panel_title,
    with_interval,
)
from dynolab.results.classification import (
    Difficulty,
    EpochInfluence,
    ExamplePath,
    PathData,
    PathScores,
)
from dynolab.statistics import mean_interval

COLORS: dict[Difficulty, str] = {
    "easy": UP,
    "medium": CHOSEN,
    "hard": BEST,
    "mislabelled": REJECTED,
}
_SHAPES = ("circle", "square", "diamond")


def simplex_plate(paths: Sequence[ExamplePath], data: PathData) -> Plate | None:
    """Paths of typical examples of every difficulty, one triangle each; the label is on top."""
    own = [one for one in paths if one.data == data]
    groups = [group for group in GROUPS if any(one.group == group for one in own)]
    if not groups:
        return None
    figure, annotations = go.Figure(), []
    layout = base_layout(380, margin={"l": 30, "r": 30, "t": 70, "b": 60})
    for index, (group, domain) in enumerate(
        zip(groups, columns(len(groups), 0.07), strict=True), start=1
    ):
        corner = "ternary" if index == 1 else f"ternary{index}"
        for place, one in enumerate(x for x in own if x.group == group):
            _add_path(figure, one, corner, _SHAPES[place % len(_SHAPES)], COLORS[group])
        ticks = {"ticks": "", "showticklabels": False, "gridcolor": GRID, "linecolor": ZERO}
        titles = ("label", "rival", "rest")
        layout[corner] = {
            "domain": {"x": domain, "y": [0, 0.9]},
            "bgcolor": PAPER,
            "sum": 1,
            **{
                f"{axis}axis": {
                    **ticks,
                    "title": {"text": title, "font": {"size": 11, "color": MUTED}},
                }
                for axis, title in zip("abc", titles, strict=True)
            },
        }
        annotations.append(panel_title(group, domain[0], 1.06))
    layout["annotations"] = annotations
    figure.update_layout(**layout, showlegend=False)
    means = {g: float(np.mean([one.zigzag for one in own if one.group == g])) for g in groups}
    told = [f"{group} {number(value, 2)}" for group, value in means.items()]
    return Plate(
        f"simplex-{data}",
        f"Learning paths: {TITLES[data]}",
        f"How much longer than straight the ways of these typical examples to their labels are: "
        f"{join(told)}.",
        "A triangle’s top is certainty of the given label, its left corner of the label’s "
        "strongest rival (of the mislabelled, the true class), its right of all other classes. "
        "Circles: start; stars: end; crosses: p*. One seed; the examples are those in the middle "
        "of their group by zig-zag.",
        figure,
    )


def _add_path(figure: go.Figure, one: ExamplePath, corner: str, shape: str, color: str) -> None:
    order = _turned(one)
    a, b, c = (np.array(one.path)[:, k].round(5) for k in order)
    common = {"subplot": corner, "showlegend": False}
    told = [f"epoch {n}: label {x:.2f}" for n, x in enumerate(a)]
    figure.add_scatterternary(
        a=a,
        b=b,
        c=c,
        mode="lines+markers",
        line={"color": color, "width": 1.8},
        marker={"color": color, "size": 4, "symbol": shape},
        opacity=0.85,
        text=told,
        hovertemplate="%{text}<extra></extra>",
        **common,
    )
    ends = [("circle-open", 0, INK, 9), ("star", -1, color, 13)]
    for symbol, at, ink, size in ends:
        figure.add_scatterternary(
            a=[a[at]],
            b=[b[at]],
            c=[c[at]],
            mode="markers",
            hoverinfo="skip",
            marker={"symbol": symbol, "color": ink, "size": size},
            **common,
        )
    truth = [one.truth[k] for k in order]
    figure.add_scatterternary(
        a=[truth[0]],
        b=[truth[1]],
        c=[truth[2]],
        mode="markers",
        marker={"symbol": "x", "color": INK, "size": 7},
        hovertemplate="p*<extra></extra>",
        **common,
    )


def _turned(one: ExamplePath) -> tuple[int, int, int]:
    """The label first, then its strongest rival."""
    others = [k for k in range(3) if k != one.label]
    if one.names[-1] != "others":
        others.sort(key=lambda k: -one.truth[k])
    return one.label, others[0], others[1]


def zigzag_plate(scores: Sequence[PathScores]) -> Plate:
    """Zig-zag against base difficulty, one panel a data set; wrong labels in their own colour."""
    known = list(dict.fromkeys(one.data for one in scores))
    figure, annotations = go.Figure(), []
    layout = base_layout(400, margin={"l": 64, "r": 24, "t": 56, "b": 84})
    told = []
    for index, (data, domain) in enumerate(
        zip(known, columns(len(known), 0.08), strict=True), start=1
    ):
        rows = [one for one in scores if one.data == data]
        one = rows[0]
        x, y, wrong = np.array(one.difficulty), np.array(one.zigzag), np.array(one.wrong)
        suffix = "" if index == 1 else str(index)
        for name, mask, color in (
            ("right label", ~wrong, CHOSEN),
            ("wrong label", wrong, REJECTED),
        ):
            figure.add_scatter(
                x=x[mask].round(4),
                y=y[mask].round(4),
                mode="markers",
                name=name,
                legendgroup=name,
                showlegend=index == 1,
                xaxis=f"x{suffix}",
                yaxis=f"y{suffix}",
                marker={"color": color, "size": 5, "opacity": 0.55},
                hovertemplate=f"{name}: difficulty %{{x:.2f}}, zig-zag %{{y:.2f}}<extra></extra>",
            )
        layout[f"xaxis{suffix}"] = {
            "domain": domain,
            "anchor": f"y{suffix}",
            "title": {"text": "base difficulty ‖e_y − p*‖₂"},
        }
        layout[f"yaxis{suffix}"] = {"anchor": f"x{suffix}", "title": {"text": "zig-zag"}}
        annotations.append(panel_title(TITLES[data], domain[0], 1.02))
        area = mean_interval(np.array([row.auc for row in rows]))
        told.append(f"{with_interval(area, sign=False)} ({TITLES[data]})")
    layout["annotations"] = annotations
    layout["legend"] = {"orientation": "h", "x": 1, "xanchor": "right", "y": -0.2, "yanchor": "top"}
    figure.update_layout(**layout)
    return Plate(
        "zigzag",
        "Zig-zag finds what is hard or wrong",
        f"A wrong label’s path is longer than a right one’s with probability {join(told)}.",
        "A dot: a training example of one seed. Zig-zag Z = Σ‖Δp̄‖ + ‖e_y − p̄_T‖ − ‖e_y − p̄_0‖: "
        "how much longer than straight its way to the given label is, the last stretch included "
        "whether training went there or not; a definition of this project. p* is exact in the toy, "
        "people’s where they labelled, else what networks trained on other images predict.",
        figure,
    )


def epoch_plate(epochs: Sequence[EpochInfluence], data: PathData) -> Plate | None:
    """What an example's own updates and the others' add up to, group by group."""
    panels, told = [], []
    for group in GROUPS:
        found = curves([one for one in epochs if one.data == data], group)
        if found is None:
            continue
        times = list(range(found["own"].shape[1]))
        lines = [
            Line(name, times, [mean_interval(column) for column in found[key].cumsum(1).T])
            for name, key in (("own updates", "own"), ("others’ updates", "others"))
        ]
        panels.append(LinePanel(group, "epoch", "Σ Δ log p of the label (nats)", lines, zero=True))
        ends = [with_interval(line.intervals[-1]) for line in lines]
        if group in ("easy", "mislabelled"):
            told.append(f"{group}: own {ends[0]}, others {ends[1]}")
    if not panels:
        return None
    return Plate(
        f"epochs-{data}",
        f"Own updates and the others’: {TITLES[data]}",
        f"All in all, in nats: {'; '.join(told)}.",
        "Added up over epochs, means over the examples of a group, then over seeds with 95% "
        "t-intervals. Own: what an example’s share of its step does to its label’s log p by "
        "itself; others: the rest of the epoch’s change. An own update lifts the given label; "
        "what the others do tells whether they agree with it.",
        line_figure(panels),
    )
