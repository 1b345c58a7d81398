"""Forces of single recorded steps: what the sides of the loss and the optimizer's history did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go

from dynolab.grouping import grouped
from dynolab.report.figure import Figure, buttons, spread, subplots
from dynolab.report.inputs.study import Training
from dynolab.report.page import Words
from dynolab.report.style import (
    CHOSEN,
    HISTORY,
    INK,
    PAPER,
    REJECTED,
    RESIDUAL,
    in_order,
    style_of,
)
from dynolab.report.text import with_interval
from dynolab.results.study import ForceRow
from dynolab.statistics import mean_interval

_ONE_SCALE = 8.0  # beyond this ratio the smaller steps' bars would vanish
Parts = tuple[tuple[str, str, str], ...]  # field, what pushed, colour
_PARTS: Parts = (
    ("from_chosen", "", CHOSEN),
    ("from_rejected", "", REJECTED),
    ("from_history", "from history (momentum, decay)", HISTORY),
    ("residual", "residual: beyond first order", RESIDUAL),
)
_SIDES = ("the chosen side of the loss", "the rejected side of the loss")
Keep = Callable[[ForceRow], bool]
_VIEWS: tuple[tuple[str, Keep], ...] = (
    ("all prompts", lambda row: True),
    ("in the step's batch", lambda row: row.in_batch),
    ("other training prompts", lambda row: not row.in_batch and row.split == "train"),
    ("held-out prompts", lambda row: row.split == "heldout"),
)


def decomposition_figure(training: Training, sides: tuple[str, str] = _SIDES) -> Figure | None:
    """Mean Δ log π of every kind at recorded steps, split by what pushed.

    **Arguments:** `sides`: names of the loss's two sides.
    """
    rows = training.forces
    if not rows:
        return None
    steps = spread(sorted({row.step for row in rows}))
    parts, kinds = _parts(rows, sides), in_order({row.kind for row in rows})[::-1]
    height = 30 * len(kinds)
    plot = subplots(
        [f"step {step}" for step in steps],
        150 + height,
        space=0.03,
        shared_y=True,
        barmode="relative",
        bargap=0.35,
        margin={"l": 64, "r": 24, "t": 100, "b": 52},
        legend={
            "orientation": "h",
            "x": 0,
            "y": -54 / height,
            "yanchor": "top",
            "traceorder": "normal",
        },
        x={"nticks": 5, "title_text": "Δ log π (nats)", "zerolinecolor": INK},
        y={"showgrid": False, "type": "category", "range": [-0.6, len(kinds) - 0.4]},
    )
    shared = _fit_one_scale(rows, steps)
    for col in range(1, len(steps) + 1):
        _add_bars(plot, [style_of(kind).label for kind in kinds], parts, col)
        if col > 1:
            plot.update_xaxes(matches="x" if shared else None, col=col)
            plot.update_yaxes(ticks="", col=col)
    views = {
        name: _bar_data(own, parts, kinds, steps)
        for name, keep in _VIEWS
        if (own := list(filter(keep, rows)))
    }
    for trace, x, text in zip(plot.data, *views["all prompts"], strict=True):
        trace.update(x=x, customdata=text)
    if len(views) > 1:
        choices = [
            (name, [{"x": values, "customdata": texts}, {}])
            for name, (values, texts) in views.items()
        ]
        plot.update_layout(updatemenus=[buttons(choices, 1 + 34 / height)])
    words = Words("study.html", stage=training.stage, shared=shared)
    return replace(words.figure("decomposition", plot), name=f"decomposition-{training.stage}")


def _parts(rows: Sequence[ForceRow], sides: tuple[str, str]) -> Parts:
    """The parts that push at all: SFT has no rejected side, SGD without momentum no history."""
    names = {"from_chosen": f"from {sides[0]}", "from_rejected": f"from {sides[1]}"}
    if not any(row.from_rejected for row in rows):
        names["from_chosen"] = "from the batch's answers"
    return tuple(
        (name, names.get(name, label), color)
        for name, label, color in _PARTS
        if any(getattr(row, name) for row in rows)
    )


def _fit_one_scale(rows: Sequence[ForceRow], steps: Sequence[int]) -> bool:
    """Whether the steps' changes are similar enough in size for one scale."""
    sizes = [np.mean([abs(row.measured) for row in rows if row.step == step]) for step in steps]
    return bool(max(sizes) <= _ONE_SCALE * min(sizes))


def _add_bars(plot: go.Figure, labels: list[str], parts: Parts, col: int) -> None:
    for name, label, color in parts:
        plot.add_bar(
            y=labels,
            orientation="h",
            name=label,
            legendgroup=name,
            showlegend=col == 1,
            marker={"color": color, "line": {"width": 0}},
            hovertemplate="<b>%{y}</b><br>" + label + " %{customdata}<extra></extra>",
            row=1,
            col=col,
        )
    plot.add_scatter(
        y=labels,
        mode="markers",
        name="measured",
        legendgroup="measured",
        showlegend=col == 1,
        marker={"color": INK, "symbol": "diamond", "size": 9, "line": {"color": PAPER, "width": 1}},
        hovertemplate="<b>%{y}</b><br>measured %{customdata}<extra></extra>",
        row=1,
        col=col,
    )


Bars = tuple[list[list[float | None]], list[list[str]]]


def _bar_data(
    rows: Sequence[ForceRow], parts: Parts, kinds: Sequence[str], steps: Sequence[int]
) -> Bars:
    """Means over prompts for every trace: steps × (parts, measured), one value a kind."""
    found = grouped(((row.step, row.kind), row) for row in rows)
    values: list[list[float | None]] = []
    texts: list[list[str]] = []
    for step in steps:
        for part in (*(name for name, _, _ in parts), "measured"):
            means = [
                mean_interval(np.array([getattr(row, part) for row in found.get((step, kind), ())]))
                for kind in kinds
            ]
            values.append([round(mean.mean, 7) if mean.n else None for mean in means])
            texts.append([f"{with_interval(mean)} nats, n = {mean.n}" for mean in means])
    return values, texts
