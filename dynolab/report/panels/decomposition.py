"""The figure of who pushed: what each side of the loss and the optimizer's history did."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import plotly.graph_objects as go

from dynolab.report.inputs.study import Training
from dynolab.report.style import (
    CHOSEN,
    HISTORY,
    INK,
    PAPER,
    REJECTED,
    RESIDUAL,
    Plate,
    axis_key,
    axis_name,
    base_layout,
    buttons,
    columns,
    in_order,
    join,
    number,
    objective_name,
    panel_title,
    style_of,
    with_interval,
)
from dynolab.results.study import ForceRow
from dynolab.statistics import mean_interval

_STEPS_SHOWN = 4
_ONE_SCALE = 8.0  # beyond this ratio the smaller steps' bars would vanish
Parts = tuple[tuple[str, str, str], ...]  # field, name, colour
_PARTS: Parts = (
    ("from_chosen", "from the chosen side", CHOSEN),
    ("from_rejected", "from the rejected side", REJECTED),
    ("from_history", "from history (momentum, decay)", HISTORY),
    ("residual", "residual: beyond first order", RESIDUAL),
)


def decomposition_plate(training: Training) -> Plate | None:
    """Mean Δ log π of every kind at recorded steps, split by what pushed."""
    rows, stage = training.forces, training.stage
    if not rows:
        return None
    steps = _spread(sorted({row.step for row in rows}), _STEPS_SHOWN)
    parts = _parts(rows)
    kinds = in_order({row.kind for row in rows})[::-1]
    labels = [style_of(kind).label for kind in kinds]
    figure = go.Figure()
    layout = base_layout(
        150 + 30 * len(kinds),
        barmode="relative",
        bargap=0.35,
        margin={"l": 64, "r": 24, "t": 100, "b": 52},
        legend={
            "orientation": "h",
            "x": 0,
            "y": -54 / (30 * len(kinds)),
            "yanchor": "top",
            "traceorder": "normal",
        },
    )
    annotations = []
    shared = _alike(rows, steps)
    for index, (step, domain) in enumerate(
        zip(steps, columns(len(steps), 0.03), strict=True), start=1
    ):
        _add_bars(figure, labels, parts, index)
        layout[axis_key("x", index)] = {
            "domain": domain,
            "anchor": axis_name("y", index),
            "nticks": 5,
            "title": {"text": "Δ log π (nats)"},
            "zerolinecolor": INK,
            **({"matches": "x"} if shared and index > 1 else {}),
        }
        layout[axis_key("y", index)] = {
            "anchor": axis_name("x", index),
            "showticklabels": index == 1,
            "showgrid": False,
            "type": "category",
            "range": [-0.6, len(kinds) - 0.4],
            **({"matches": "y", "ticks": ""} if index > 1 else {}),
        }
        annotations.append(panel_title(f"step {step}", domain[0], 1.01))
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
    sides = "the chosen and the rejected side of the loss" if _two_sided(rows) else "the loss"
    history = " and by the optimizer's history" if any(row.from_history for row in rows) else ""
    return Plate(
        f"decomposition-{stage}",
        f"Who pushed: forces of single {objective_name(stage)} steps",
        _message(rows, stage),
        f"Bars: means over prompts of the first-order push by {sides}{history}, and what they "
        "leave over; stacked to the right they raise an answer, to the left they lower it. "
        "Diamond: the measured change, the sum of all bars."
        + ("" if shared else " Every step has its own scale."),
        figure,
    )


Keep = Callable[[ForceRow], bool]
_VIEWS: tuple[tuple[str, Keep], ...] = (
    ("all prompts", lambda row: True),
    ("in the step's batch", lambda row: row.in_batch),
    ("other training prompts", lambda row: not row.in_batch and row.split == "train"),
    ("held-out prompts", lambda row: row.split == "heldout"),
)


def _two_sided(rows: Sequence[ForceRow]) -> bool:
    return any(row.from_rejected for row in rows)


def _parts(rows: Sequence[ForceRow]) -> Parts:
    """The parts that push at all: SFT has no rejected side, SGD without momentum no history."""
    one_sided = not _two_sided(rows)
    return tuple(
        (name, "from the batch's answers" if one_sided and name == "from_chosen" else label, color)
        for name, label, color in _PARTS
        if any(getattr(row, name) for row in rows)
    )


def _alike(rows: Sequence[ForceRow], steps: Sequence[int]) -> bool:
    """Whether the steps move answers far enough alike to be drawn on one scale."""
    sizes = [np.mean([abs(row.measured) for row in rows if row.step == step]) for step in steps]
    return bool(max(sizes) <= _ONE_SCALE * min(sizes))


def _spread(steps: list[int], count: int) -> list[int]:
    """At most `count` of the steps, from the first to the last."""
    if len(steps) <= count:
        return steps
    return [steps[round(i * (len(steps) - 1) / (count - 1))] for i in range(count)]


def _add_bars(figure: go.Figure, labels: list[str], parts: Parts, index: int) -> None:
    axes = {"xaxis": axis_name("x", index), "yaxis": axis_name("y", index)}
    for name, label, color in parts:
        figure.add_bar(
            y=labels,
            orientation="h",
            name=label,
            legendgroup=name,
            showlegend=index == 1,
            marker={"color": color, "line": {"width": 0}},
            hovertemplate="<b>%{y}</b><br>" + label + " %{customdata}<extra></extra>",
            **axes,
        )
    figure.add_scatter(
        y=labels,
        mode="markers",
        name="measured",
        legendgroup="measured",
        showlegend=index == 1,
        marker={"color": INK, "symbol": "diamond", "size": 9, "line": {"color": PAPER, "width": 1}},
        hovertemplate="<b>%{y}</b><br>measured %{customdata}<extra></extra>",
        **axes,
    )


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


def _message(rows: Sequence[ForceRow], stage: str) -> str:
    """What moved the chosen answer, mean over all recorded steps and prompts."""
    mine = [row for row in rows if row.kind == "chosen"]
    if not mine:
        return "The chosen answer was not among the analysed kinds."

    def mean(part: str) -> str:
        return number(float(np.mean([getattr(row, part) for row in mine])), sign=True)

    sides = {
        "from_chosen": "from the chosen side",
        "from_rejected": "from the rejected side",
        "from_history": "from the optimizer's history",
        "residual": "beyond first order",
    }
    if not _two_sided(rows):
        sides["from_chosen"] = "from the batch's answers"
    told = [f"{mean(part)} {sides[part]}" for part, _, _ in _parts(rows)]
    return (
        f"A recorded {objective_name(stage)} step moves the chosen answer by {mean('measured')} "
        f"nats on average over all watched prompts: {join(told)}."
    )
