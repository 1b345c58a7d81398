"""The figures of the provable part of squeezing: panels, shapes, and step sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from numpy import ndarray

from dynolab.report.figure import (
    LEGEND_OVER_TITLES,
    Figure,
    base_layout,
    subplots,
)
from dynolab.report.style import BEST, CHOSEN, DOWN, HISTORY, INK, PAPER, REJECTED, UP
from dynolab.report.text import number, plotly_text
from dynolab.results.softmax import Panel, ShapePoint, StepPath

_FEW = 100
"""Up to so many classes the axis of ranks is linear."""

_BY_CLASSES = (CHOSEN, BEST, REJECTED, HISTORY)


def panel_figure(panels: Sequence[Panel]) -> Figure:
    """Probabilities before and after, and Δ log p, by rank before: one column per panel."""
    classes = panels[0].classes
    plot = subplots(
        [plotly_text(panel.name) for panel in panels],
        520,
        space=0.035,
        row_heights=(0.55, 0.45),
        x={"type": "linear"} if classes <= _FEW else {"type": "log", "dtick": 1},
        y_title="probability",
        margin={"l": 64, "r": 24, "t": 56, "b": 56},
        bargap=0.1,
        legend=LEGEND_OVER_TITLES,
    )
    plot.update_annotations(y=1.04)
    for col, panel in enumerate(panels, start=1):
        _add_panel(plot, panel, col)
        plot.update_yaxes(range=_range_of_others(panel), row=2, col=col)
    plot.update_xaxes(title_text="rank before", row=2)
    plot.update_yaxes(rangemode="tozero", nticks=4, row=1)
    plot.update_yaxes(zeroline=True, nticks=5, row=2)
    plot.update_yaxes(title_text="Δ log p (nats)", row=2, col=1)
    first = panels[0]
    return Figure(
        f"panels-{classes}",
        f"What {first.steps} steps do to a softmax over {classes:,} classes",
        _panel_message(panels),
        "Softmax regression on one input with four features, ascending or descending −log p_y at "
        f"learning rate {first.learning_rate:g}. Above: grey before, blue after; the star is the "
        "class y that is pulled up or pushed down. Below: the change of every class; that of y "
        "is cut off.",
        plot,
    )


def _add_panel(plot: go.Figure, panel: Panel, col: int) -> None:
    before, after = np.array(panel.before), np.array(panel.after)
    order = np.argsort(-before)
    ranks = np.arange(1, panel.classes + 1)
    change = (after - before)[order]
    for name, values, color in (("before", before, HISTORY), ("after", after, CHOSEN)):
        plot.add_scatter(
            x=ranks,
            y=np.exp(values[order]).round(7),
            mode="lines",
            name=name,
            legendgroup=name,
            showlegend=col == 1,
            line={"color": color, "width": 2.2, "shape": "hvh"},
            hovertemplate=f"rank %{{x}} {name}: %{{y:.4g}}<extra></extra>",
            row=1,
            col=col,
        )
    plot.add_scatter(
        x=[int(np.flatnonzero(order == panel.label)[0]) + 1],
        y=[float(np.exp(before[panel.label]))],
        mode="markers",
        name="y",
        legendgroup="y",
        showlegend=col == 1,
        hoverinfo="skip",
        marker={
            "symbol": "star",
            "size": 13,
            "color": REJECTED,
            "line": {"color": PAPER, "width": 1},
        },
        row=1,
        col=col,
    )
    plot.add_bar(
        x=ranks,
        y=change.round(6),
        showlegend=False,
        marker={"color": [UP if value > 0 else DOWN for value in change], "line": {"width": 0}},
        hovertemplate="rank %{x}: %{y:+.3g} nats<extra></extra>",
        row=2,
        col=col,
    )


def _changes(panel: Panel) -> tuple[float, Float[ndarray, " others"]]:
    """Δ log p of y, and of all other classes."""
    change = np.array(panel.after) - np.array(panel.before)
    others: Float[ndarray, " others"] = np.delete(change, panel.label)
    return float(change[panel.label]), others


def _range_of_others(panel: Panel) -> list[float]:
    """An axis range that shows the changes of all classes but y."""
    _, change = _changes(panel)
    room = 0.15 * max(float(np.ptp(change)), float(np.abs(change).max()))
    return [min(0.0, float(change.min())) - room, max(0.0, float(change.max())) + room]


def _panel_message(panels: Sequence[Panel]) -> str:
    parts = []
    for panel in panels:
        own, others = _changes(panel)
        parts.append(
            f"{panel.name}: y {number(own, 2, sign=True)} nats, "
            f"{(others > 0).sum():,} of {len(others):,} others rise"
        )
    whole = "; ".join(parts)
    return f"{whole[:1].upper()}{whole[1:]}."


_SHAPES = (
    ("sharpness", "fall", "Peakier: more fall", "factor on the logits", "others that fall"),
    ("label_probability", "fall", "Rarer y: more fall", "p_y", "others that fall"),
    ("label_probability", "gain", "Rarer y: i* gains less", "p_y", "Δ log p of i* (nats)"),
)


def shape_figure(points: Sequence[ShapePoint]) -> Figure:
    """Share of the others that fall by sharpness and by p_y, and what i* gains by p_y."""
    plot = subplots(
        [title for _, _, title, _, _ in _SHAPES],
        380,
        space=0.09,
        margin={"l": 64, "r": 24, "t": 56, "b": 56},
        legend=LEGEND_OVER_TITLES,
        x={"type": "log", "dtick": 1, "tickformat": "~g"},
    )
    sizes = sorted({point.classes for point in points})
    for col, (shape, measured, _, across, up) in enumerate(_SHAPES, start=1):
        for place, classes in enumerate(sizes):
            own = [point for point in points if (point.shape, point.classes) == (shape, classes)]
            means = [getattr(point, measured) for point in own]
            highs = [getattr(point, f"{measured}_high") for point in own]
            color = _BY_CLASSES[place % len(_BY_CLASSES)]
            plot.add_scatter(
                x=[point.value for point in own],
                y=means,
                mode="lines+markers",
                name=f"V = {classes:,}",
                legendgroup=str(classes),
                showlegend=col == 1,
                line={"color": color, "width": 2.5},
                marker={"size": 6},
                error_y={
                    "array": [high - mean for high, mean in zip(highs, means, strict=True)],
                    "color": color,
                    "thickness": 1.2,
                    "width": 3,
                },
                hovertemplate="%{x:g}: %{y:.3g}<extra>%{fullData.name}</extra>",
                row=1,
                col=col,
            )
        plot.update_xaxes(title_text=across, col=col)
        tickformat = ".0%" if measured == "fall" else ""
        plot.update_yaxes(title_text=up, tickformat=tickformat, col=col)
    return Figure(
        "shapes",
        "The shape decides which classes fall",
        _shape_message(points),
        "A push of size one (η = 1); means over random distributions with 95% intervals. Left: "
        "normal logits times a factor. Middle and right: normal logits in which the pushed class "
        "holds the probability p_y.",
        plot,
    )


def _shape_message(points: Sequence[ShapePoint]) -> str:
    most = max(point.classes for point in points)
    parts = []
    for shape, what in (
        ("sharpness", "the logits are made peakier"),
        ("label_probability", "p_y grows"),
    ):
        own = [point for point in points if (point.shape, point.classes) == (shape, most)]
        parts.append(f"from {own[0].fall:.0%} to {own[-1].fall:.0%} as {what}")
    return f"Of {most - 1:,} other classes the share that falls goes {' and '.join(parts)}."


def step_figure(paths: Sequence[StepPath]) -> Figure:
    """Δ log p of some classes by the size of the step."""
    known = {"pushed": REJECTED, "likeliest other": UP}
    others = [path for path in paths if path.role not in known]
    low = min(min(path.change) for path in others)
    gain = max(max(path.change) for path in paths)
    room = 0.1 * (gain - low)
    plot = go.Figure(
        layout=base_layout(
            380,
            xaxis={"title": {"text": "size of the step η"}},
            yaxis={"title": {"text": "Δ log p (nats)"}, "range": [low - room, gain + room]},
        )
    )
    for path in paths:
        plot.add_scatter(
            x=path.steps,
            y=path.change,
            mode="lines",
            name=plotly_text(path.role),
            showlegend=path.role in known,
            line={
                "color": known.get(path.role, HISTORY),
                "width": 3 if path.role in known else 1.4,
            },
            hovertemplate=f"{plotly_text(path.role)} (p = {path.probability:.3g}), η = %{{x:g}}: "
            "%{y:+.3g} nats<extra></extra>",
        )
    plot.add_hline(y=0, line={"color": INK, "width": 1})
    turned = sum(path.change[1] > 0 > path.change[-1] for path in others)
    return Figure(
        "step-paths",
        "What has fallen stays fallen",
        f"As the step grows, i* gains up to {number(gain, 2, sign=True)} nats; of {len(others)} "
        f"other classes shown {turned} rise{'s' if turned == 1 else ''} at first and then "
        f"fall{'s' if turned == 1 else ''}, and none that falls comes back.",
        "One random distribution; its median class is pushed. Every curve is concave, so a "
        "class below its start keeps falling. The pushed class leaves the axes.",
        plot,
    )
