"""Forces of single recorded steps: who pushed, and whether the pushes explain what a step did."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import plotly.graph_objects as go

from dynolab.claims.study import unexplained
from dynolab.report.figure import Figure, add_diagonal, buttons, spread, subplots
from dynolab.report.inputs.study import Training
from dynolab.report.style import (
    CHOSEN,
    HISTORY,
    INK,
    PAPER,
    REJECTED,
    RESIDUAL,
    in_order,
    objective_name,
    rank_of,
    stage_title,
    style_of,
)
from dynolab.report.text import join, number, plotly_text, with_interval
from dynolab.results.study import ForceRow
from dynolab.statistics import mean_interval

_POINTS_PER_KIND = 150
_ONE_SCALE = 8.0  # beyond this ratio the smaller steps' bars would vanish
Parts = tuple[tuple[str, str, str], ...]  # field, what pushed, colour
_PARTS: Parts = (
    ("from_chosen", "", CHOSEN),
    ("from_rejected", "", REJECTED),
    ("from_history", "from history (momentum, decay)", HISTORY),
    ("residual", "residual: beyond first order", RESIDUAL),
)
_SIDES = ("the chosen side of the loss", "the rejected side of the loss")
_IN_SENTENCE = {
    "from_history": "from the optimizer's history",
    "residual": "beyond first order",
}
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
    rows, stage = training.forces, training.stage
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
    pushers = join(sides) if _two_sided(rows) else "the loss"
    history = " and by the optimizer's history" if any(row.from_history for row in rows) else ""
    return Figure(
        f"decomposition-{stage}",
        f"Who pushed: forces of single {objective_name(stage)} steps",
        _decomposition_message(rows, stage, parts),
        f"Bars: means over prompts of the first-order push by {pushers}{history}, and what they "
        "leave unexplained; stacked to the right they raise an answer, to the left they lower it. "
        "Diamond: the measured change, the sum of all bars."
        + ("" if shared else " Every step has its own scale."),
        plot,
    )


def _two_sided(rows: Sequence[ForceRow]) -> bool:
    return any(row.from_rejected for row in rows)


def _parts(rows: Sequence[ForceRow], sides: tuple[str, str]) -> Parts:
    """The parts that push at all: SFT has no rejected side, SGD without momentum no history."""
    names = {"from_chosen": f"from {sides[0]}", "from_rejected": f"from {sides[1]}"}
    if not _two_sided(rows):
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
    groups: defaultdict[tuple[int, str], list[ForceRow]] = defaultdict(list)
    for row in rows:
        groups[row.step, row.kind].append(row)
    values: list[list[float | None]] = []
    texts: list[list[str]] = []
    for step in steps:
        for part in (*(name for name, _, _ in parts), "measured"):
            means = [
                mean_interval(np.array([getattr(row, part) for row in groups[step, kind]]))
                for kind in kinds
            ]
            values.append([round(mean.mean, 7) if mean.n else None for mean in means])
            texts.append([f"{with_interval(mean)} nats, n = {mean.n}" for mean in means])
    return values, texts


def _decomposition_message(rows: Sequence[ForceRow], stage: str, parts: Parts) -> str:
    """What moved the chosen answer, mean over all recorded steps and prompts."""
    chosen = [row for row in rows if row.kind == "chosen"]
    if not chosen:
        return "The chosen answer was not among the analysed kinds."

    def mean(part: str) -> str:
        return number(float(np.mean([getattr(row, part) for row in chosen])), sign=True)

    sides = [f"{mean(part)} {_IN_SENTENCE.get(part, label)}" for part, label, _ in parts]
    return (
        f"A recorded {objective_name(stage)} step moves the chosen answer by {mean('measured')} "
        f"nats on average over {len({row.pair_id for row in chosen})} of the watched prompts: "
        f"{join(sides)}."
    )


def prediction_figure(trainings: Sequence[Training]) -> Figure | None:
    """Measured against predicted Δ log π of single answers, with the line of identity."""
    trainings = [training for training in trainings if training.forces]
    if not trainings:
        return None
    plot = subplots(
        [stage_title(training.stage) for training in trainings],
        500,
        space=0.1,
        margin={"l": 64, "r": 24, "t": 48, "b": 56},
        x={"title_text": "predicted Δ log π (nats)"},
        y_title="measured Δ log π (nats)",
    )
    in_legend = set[str]()
    for col, training in enumerate(trainings, start=1):
        rows = training.forces
        ends = np.array([[row.measured, row.predicted] for row in rows])
        low, high = float(np.nanmin(ends)), float(np.nanmax(ends))
        room = 0.04 * (high - low)
        add_diagonal(plot, (low - room, high + room), row=1, col=col)
        for kind in sorted(in_order({r.kind for r in rows}), key=lambda k: style_of(k).prominent):
            own = [row for row in rows if row.kind == kind]
            _add_points(plot, own, col, legend=kind not in in_legend)
            in_legend.add(kind)
    counts = Counter((training.stage, r.kind) for training in trainings for r in training.forces)
    thinned = f"At most {_POINTS_PER_KIND} points per kind are drawn, all are counted."
    return Figure(
        "prediction",
        "Do the forces explain what a step did?",
        _prediction_message(trainings),
        "A point: one answer over one recorded step; open circles are answers to prompts outside "
        "the step's own batch. Predicted: the gradient of log π, taken midway through the step, "
        "times the change that the step made to the weights. On the dashed line it is exact. "
        "1 − R² = Σ(measured − predicted)² / Σ measured²; predicting no change gives 1. "
        + (thinned if max(counts.values()) > _POINTS_PER_KIND else ""),
        plot,
    )


def _add_points(plot: go.Figure, rows: Sequence[ForceRow], col: int, legend: bool) -> None:
    """Adds every n-th row, so that figures of large studies stay small."""
    rows = rows[:: -(-len(rows) // _POINTS_PER_KIND)]
    style = style_of(rows[0].kind)
    plot.add_scatter(
        x=[round(row.predicted, 6) for row in rows],
        y=[round(row.measured, 6) for row in rows],
        mode="markers",
        name=style.label,
        legendgroup=style.label,
        showlegend=legend,
        legendrank=rank_of(rows[0].kind),
        opacity=0.75 if style.prominent else 0.5,
        marker={
            "color": style.color,
            "size": 7 if style.prominent else 5,
            "symbol": ["circle" if row.in_batch else "circle-open" for row in rows],
        },
        customdata=[
            f"step {row.step}, {plotly_text(row.pair_id, 32)}, "
            + ("in the step's batch" if row.in_batch else "not in the step's batch")
            for row in rows
        ],
        hovertemplate="<b>%{fullData.name}</b><br>%{customdata}<br>predicted %{x:+.4f}, "
        "measured %{y:+.4f}<extra></extra>",
        row=1,
        col=col,
    )


def _prediction_message(trainings: Sequence[Training]) -> str:
    parts = []
    for training in trainings:
        rows, steps = training.forces, len({row.step for row in training.forces})
        left = with_interval(unexplained(rows), sign=False)
        parts.append(
            f"{left} under {objective_name(training.stage)} ({len(rows)} changes of answers at "
            f"{steps} recorded step{'s' if steps > 1 else ''})"
        )
    return f"Of the squared change of log π, first-order forces leave unexplained {join(parts)}."
