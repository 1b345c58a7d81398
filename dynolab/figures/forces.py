"""Figures of forces: prediction against measurement, and what each side of the loss did."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import plotly.graph_objects as go

from dynolab.figures.inputs import ForceRow, StageName
from dynolab.figures.intervals import explained, mean_interval
from dynolab.figures.paths import STAGE_TITLE
from dynolab.figures.style import (
    CHOSEN,
    HISTORY,
    INK,
    PAPER,
    REJECTED,
    RESIDUAL,
    ZERO,
    Plate,
    axis_name,
    base_layout,
    buttons,
    in_order,
    join,
    number,
    panel_title,
    plotly_text,
    rank_of,
    style_of,
    with_interval,
)

_POINTS_PER_KIND = 150
_STEPS_SHOWN = 4
Parts = tuple[tuple[str, str, str], ...]  # field, name, colour
_PARTS: Parts = (
    ("from_chosen", "from the chosen side", CHOSEN),
    ("from_rejected", "from the rejected side", REJECTED),
    ("from_history", "from history (momentum, decay)", HISTORY),
    ("residual", "residual: beyond first order", RESIDUAL),
)


def prediction_plate(rows: Sequence[ForceRow]) -> Plate | None:
    """Measured against predicted Δ log π of single answers, with the line of identity."""
    stages = [stage for stage in STAGE_TITLE if any(row.stage == stage for row in rows)]
    if not stages:
        return None
    figure = go.Figure()
    layout = base_layout(500, margin={"l": 64, "r": 24, "t": 48, "b": 56})
    width = (1 - 0.1 * (len(stages) - 1)) / len(stages)
    annotations, shown = [], set[str]()
    for index, stage in enumerate(stages, start=1):
        mine = [row for row in rows if row.stage == stage]
        left = (index - 1) * (width + 0.1)
        key = "" if index == 1 else str(index)
        _add_identity(figure, mine, index)
        for kind in sorted(in_order({r.kind for r in mine}), key=lambda k: style_of(k).prominent):
            _add_points(figure, [r for r in mine if r.kind == kind], index, kind not in shown)
            shown.add(kind)
        layout[f"xaxis{key}"] = {
            "domain": [left, left + width], "anchor": f"y{key}",
            "title": {"text": "predicted Δ log π (nats)"},
        }  # fmt: skip
        layout[f"yaxis{key}"] = {"anchor": f"x{key}"}
        annotations.append(panel_title(_with_r2(stage, mine), left, 1.02))
    layout["yaxis"]["title"] = {"text": "measured Δ log π (nats)"}
    layout["annotations"] = annotations
    figure.update_layout(**layout)
    return Plate(
        "prediction",
        "Do the forces explain what a step did?",
        _prediction_message(rows, stages),
        "A point: one answer over one recorded step; open circles are answers to prompts outside "
        "the step's own batch. On the dashed line the first-order prediction is exact. R² is the "
        "share of squared change explained, against predicting no change"
        + (
            f"; at most {_POINTS_PER_KIND} points a kind are drawn, all are counted."
            if _thinned(rows)
            else "."
        ),
        figure,
    )


def _r2(rows: Sequence[ForceRow]) -> tuple[float, str]:
    found = explained(
        np.array([row.measured for row in rows]),
        np.array([row.predicted for row in rows]),
        np.array([row.pair_id for row in rows]),
    )
    return found.mean, with_interval(found, sign=False)


def _with_r2(stage: StageName, rows: Sequence[ForceRow]) -> str:
    return f"{STAGE_TITLE[stage]}: R² = {number(_r2(rows)[0])}"


def _thinned(rows: Sequence[ForceRow]) -> bool:
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        counts[(row.stage, row.kind)] = counts.get((row.stage, row.kind), 0) + 1
    return max(counts.values(), default=0) > _POINTS_PER_KIND


def _add_identity(figure: go.Figure, rows: Sequence[ForceRow], index: int) -> None:
    ends = np.array([[row.measured, row.predicted] for row in rows])
    low, high = float(np.nanmin(ends)), float(np.nanmax(ends))
    pad = 0.04 * (high - low)
    figure.add_scatter(
        x=[low - pad, high + pad], y=[low - pad, high + pad], mode="lines", showlegend=False,
        line={"color": ZERO, "dash": "dash", "width": 1.5}, hoverinfo="skip",
        xaxis=axis_name("x", index), yaxis=axis_name("y", index),
    )  # fmt: skip


def _add_points(figure: go.Figure, rows: Sequence[ForceRow], index: int, legend: bool) -> None:
    """Every n-th row, so that a large study stays light and a small one whole."""
    rows = rows[:: -(-len(rows) // _POINTS_PER_KIND)]
    style = style_of(rows[0].kind)
    figure.add_scatter(
        x=[round(row.predicted, 6) for row in rows], y=[round(row.measured, 6) for row in rows],
        mode="markers", name=style.label, legendgroup=style.label, showlegend=legend,
        legendrank=rank_of(rows[0].kind), opacity=0.75 if style.prominent else 0.5,
        marker={
            "color": style.color, "size": 7 if style.prominent else 5,
            "symbol": ["circle" if row.in_batch else "circle-open" for row in rows],
        },
        customdata=[
            f"step {row.step}, {plotly_text(row.pair_id, 32)}, "
            + ("in the step's batch" if row.in_batch else "not in the step's batch")
            for row in rows
        ],
        hovertemplate="<b>%{fullData.name}</b><br>%{customdata}<br>predicted %{x:+.4f}, "
        "measured %{y:+.4f}<extra></extra>",
        xaxis=axis_name("x", index), yaxis=axis_name("y", index),
    )  # fmt: skip


def _prediction_message(rows: Sequence[ForceRow], stages: Sequence[StageName]) -> str:
    parts = []
    for stage in stages:
        mine = [row for row in rows if row.stage == stage]
        steps = len({row.step for row in mine})
        parts.append(
            f"{stage.upper()} R² = {_r2(mine)[1]} over {len(mine)} answers at {steps} "
            f"recorded step{'s' if steps > 1 else ''}"
        )
    return f"First-order forces against the measured change: {join(parts)}."


def decomposition_plate(rows: Sequence[ForceRow], stage: StageName) -> Plate | None:
    """Mean Δ log π of every kind at recorded steps, split by what pushed."""
    rows = [row for row in rows if row.stage == stage]
    if not rows:
        return None
    steps = _spread(sorted({row.step for row in rows}), _STEPS_SHOWN)
    parts = _parts(rows, stage)
    kinds = in_order({row.kind for row in rows})[::-1]
    labels = [style_of(kind).label for kind in kinds]
    figure = go.Figure()
    layout = base_layout(
        150 + 30 * len(kinds), barmode="relative", bargap=0.35,
        margin={"l": 64, "r": 24, "t": 100, "b": 52},
        legend={"orientation": "h", "x": 0, "y": -54 / (30 * len(kinds)), "yanchor": "top",
                "traceorder": "normal"},
    )  # fmt: skip
    width = (1 - 0.03 * (len(steps) - 1)) / len(steps)
    annotations = []
    for index, step in enumerate(steps, start=1):
        left = (index - 1) * (width + 0.03)
        key = "" if index == 1 else str(index)
        _add_bars(figure, labels, parts, index)
        layout[f"xaxis{key}"] = {
            "domain": [left, left + width], "anchor": f"y{key}", "nticks": 5,
            "title": {"text": "Δ log π (nats)"}, "zerolinecolor": INK,
        }  # fmt: skip
        if index > 1:
            layout[f"xaxis{key}"]["matches"] = "x"
        layout[f"yaxis{key}"] = {
            "anchor": f"x{key}", "showticklabels": index == 1, "showgrid": False,
            "type": "category",
            "range": [-0.6, len(kinds) - 0.4],
        }  # fmt: skip
        if index > 1:
            layout[f"yaxis{key}"] |= {"matches": "y", "ticks": ""}
        annotations.append(panel_title(f"step {step}", left, 1.01))
    layout["annotations"] = annotations
    views = [
        (name, _bar_data(list(filter(keep, rows)), parts, kinds, steps)) for name, keep in _VIEWS
    ]
    views = [(name, data) for name, data in views if data is not None]
    assert views[0][1] is not None, "the first view holds all rows"
    for trace, (x, custom) in zip(figure.data, zip(*views[0][1], strict=True), strict=True):
        trace.update(x=x, customdata=custom)
    if len(views) > 1:
        top = 1 + 34 / (30 * len(kinds))
        layout["updatemenus"] = [
            buttons([(n, [{"x": d[0], "customdata": d[1]}, {}]) for n, d in views if d], top)
        ]
    figure.update_layout(**layout)
    sides = "the chosen and the rejected side of the loss" if stage == "dpo" else "the loss"
    return Plate(
        f"decomposition-{stage}",
        f"Who pushed: forces of single {stage.upper()} steps",
        _decomposition_message(rows, stage),
        f"Bars: means over prompts of the first-order push by {sides} and by the optimizer's "
        "history, and what they leave over; stacked to the right they raise an answer, to the "
        "left they lower it. Diamond: the measured change, the sum of all bars.",
        figure,
    )


Keep = Callable[[ForceRow], bool]
_VIEWS: tuple[tuple[str, Keep], ...] = (
    ("all prompts", lambda row: True),
    ("in the step's batch", lambda row: row.in_batch),
    ("other training prompts", lambda row: not row.in_batch and row.split == "train"),
    ("held-out prompts", lambda row: row.split == "heldout"),
)


def _parts(rows: Sequence[ForceRow], stage: StageName) -> Parts:
    """The parts that push at all: SFT has no rejected side, SGD without momentum no history."""
    present = (part for part in _PARTS if any(getattr(row, part[0]) for row in rows))
    return tuple(
        (name, "from the batch's answers" if stage == "sft" else label, color)
        if name == "from_chosen"
        else (name, label, color)
        for name, label, color in present
    )


def _spread(steps: list[int], count: int) -> list[int]:
    """At most `count` of the steps, from the first to the last."""
    if len(steps) <= count:
        return steps
    return [steps[round(i * (len(steps) - 1) / (count - 1))] for i in range(count)]


def _add_bars(figure: go.Figure, labels: list[str], parts: Parts, index: int) -> None:
    axes = {"xaxis": axis_name("x", index), "yaxis": axis_name("y", index)}
    for name, label, color in parts:
        figure.add_bar(
            y=labels, orientation="h", name=label, legendgroup=name, showlegend=index == 1,
            marker={"color": color, "line": {"width": 0}},
            hovertemplate="<b>%{y}</b><br>" + label + " %{customdata}<extra></extra>", **axes,
        )  # fmt: skip
    figure.add_scatter(
        y=labels, mode="markers", name="measured", legendgroup="measured", showlegend=index == 1,
        marker={"color": INK, "symbol": "diamond", "size": 9, "line": {"color": PAPER, "width": 1}},
        hovertemplate="<b>%{y}</b><br>measured %{customdata}<extra></extra>", **axes,
    )  # fmt: skip


Bars = tuple[list[list[float | None]], list[list[str]]]


def _bar_data(
    rows: Sequence[ForceRow], parts: Parts, kinds: list[str], steps: list[int]
) -> Bars | None:
    """Means over prompts for every trace: steps × (parts, measured), one value a kind."""
    if not rows:
        return None
    groups: dict[tuple[int, str], list[ForceRow]] = {}
    for row in rows:
        groups.setdefault((row.step, row.kind), []).append(row)
    values: list[list[float | None]] = []
    texts: list[list[str]] = []
    for step in steps:
        for part in [name for name, _, _ in parts] + ["measured"]:
            found = [
                mean_interval(np.array([getattr(r, part) for r in groups.get((step, kind), ())]))
                for kind in kinds
            ]
            values.append([round(f.mean, 7) if f.n else None for f in found])
            texts.append([f"{with_interval(f)} nats, n = {f.n}" for f in found])
    return values, texts


def _decomposition_message(rows: Sequence[ForceRow], stage: StageName) -> str:
    """What the sides did to the chosen answer, mean over all recorded steps and prompts."""
    kind = "chosen"
    mine = [row for row in rows if row.kind == kind]
    if not mine:
        return "The chosen answer was not among the analysed kinds."

    def mean(part: str) -> str:
        return number(float(np.mean([getattr(row, part) for row in mine])), sign=True)

    text = f"A recorded {stage.upper()} step moves the chosen answer by {mean('measured')} nats"
    if stage == "dpo":
        return (
            f"{text} on average: {mean('from_chosen')} from the chosen side, "
            f"{mean('from_rejected')} from the rejected side, {mean('from_history')} from the "
            f"optimizer's history, {mean('residual')} beyond first order."
        )
    return (
        f"{text} on average: {mean('from_chosen')} from the batch's answers, "
        f"{mean('from_history')} from the optimizer's history, {mean('residual')} beyond first "
        "order."
    )
