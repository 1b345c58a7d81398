"""The figures of the provable part of squeezing: panels, shapes, and sizes of step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from numpy import ndarray

from dynolab.report.style import (
    BEST,
    CHOSEN,
    DOWN,
    HISTORY,
    INK,
    PAPER,
    REJECTED,
    UP,
    Plate,
    axis_key,
    axis_name,
    base_layout,
    columns,
    number,
    panel_title,
    plotly_text,
)
from dynolab.results.softmax import Panel, ShapePoint, StepPath

_FEW = 100
"""Up to so many classes ranks stand on a linear axis."""

_BY_CLASSES = (CHOSEN, BEST, REJECTED, HISTORY)


def panel_plate(panels: Sequence[Panel]) -> Plate:
    """Probabilities before and after, and Δ log p, by rank before: one column a panel."""
    figure = go.Figure()
    layout = base_layout(520, margin={"l": 64, "r": 24, "t": 56, "b": 56}, bargap=0.1)
    annotations = []
    classes = panels[0].classes
    across = {"type": "linear"} if classes <= _FEW else {"type": "log", "dtick": 1}
    for index, (panel, domain) in enumerate(
        zip(panels, columns(len(panels), 0.035), strict=True), start=1
    ):
        above, below = index, index + len(panels)
        _add_panel(figure, panel, above, below, legend=index == 1)
        layout[axis_key("x", above)] = {
            "domain": domain,
            "anchor": axis_name("y", above),
            "showticklabels": False,
            **across,
        }
        layout[axis_key("x", below)] = {
            "domain": domain,
            "anchor": axis_name("y", below),
            "title": {"text": "rank before"},
            **across,
        }
        layout[axis_key("y", above)] = {
            "domain": [0.5, 1.0],
            "anchor": axis_name("x", above),
            "rangemode": "tozero",
            "title": {"text": "probability" if index == 1 else ""},
            "nticks": 4,
        }
        layout[axis_key("y", below)] = {
            "domain": [0.0, 0.4],
            "anchor": axis_name("x", below),
            "zeroline": True,
            "title": {"text": "Δ log p (nats)" if index == 1 else ""},
            "nticks": 5,
            "range": _of_others(panel),
        }
        annotations.append(panel_title(plotly_text(panel.name), domain[0], 1.02))
    layout["annotations"] = annotations
    layout["legend"] = {
        "orientation": "h",
        "x": 0.82,
        "xanchor": "right",
        "y": 1.08,
        "yanchor": "bottom",
    }
    figure.update_layout(**layout)
    first = panels[0]
    return Plate(
        f"panels-{classes}",
        f"What {first.steps} steps do to a softmax over {classes:,} classes",
        _panel_message(panels),
        "Softmax regression on one input with four features, ascending or descending −log p_y at "
        f"learning rate {first.learning_rate:g}. Above: grey before, blue after; the star is the "
        "class y that is pulled up or pushed down. Below: what rose and fell, class by class; y "
        "itself leaves that picture.",
        figure,
    )


def _add_panel(figure: go.Figure, panel: Panel, above: int, below: int, *, legend: bool) -> None:
    before, after = np.array(panel.before), np.array(panel.after)
    order = np.argsort(-before)
    ranks = np.arange(1, panel.classes + 1)
    at = int(np.flatnonzero(order == panel.label)[0])
    change = (after - before)[order]
    top = {"xaxis": axis_name("x", above), "yaxis": axis_name("y", above)}
    bottom = {"xaxis": axis_name("x", below), "yaxis": axis_name("y", below)}
    for name, values, color in (("before", before, HISTORY), ("after", after, CHOSEN)):
        figure.add_scatter(
            x=ranks,
            y=np.exp(values[order]).round(7),
            mode="lines",
            name=name,
            legendgroup=name,
            showlegend=legend,
            line={"color": color, "width": 2.2, "shape": "hvh"},
            hovertemplate=f"rank %{{x}} {name}: %{{y:.4g}}<extra></extra>",
            **top,
        )
    figure.add_scatter(
        x=[at + 1],
        y=[float(np.exp(before[panel.label]))],
        mode="markers",
        name="y",
        legendgroup="y",
        showlegend=legend,
        hoverinfo="skip",
        marker={
            "symbol": "star",
            "size": 13,
            "color": REJECTED,
            "line": {"color": PAPER, "width": 1},
        },
        **top,
    )
    figure.add_bar(
        x=ranks,
        y=change.round(6),
        showlegend=False,
        marker={"color": [UP if value > 0 else DOWN for value in change], "line": {"width": 0}},
        hovertemplate="rank %{x}: %{y:+.3g} nats<extra></extra>",
        **bottom,
    )


def _changes(panel: Panel) -> tuple[float, Float[ndarray, " others"]]:
    """Δ log p of y, and of all other classes."""
    change = np.array(panel.after) - np.array(panel.before)
    others: Float[ndarray, " others"] = np.delete(change, panel.label)
    return float(change[panel.label]), others


def _of_others(panel: Panel) -> list[float]:
    """An axis that holds what all classes but y do."""
    _, change = _changes(panel)
    room = 0.15 * max(float(np.ptp(change)), float(np.abs(change).max()))
    return [min(0.0, float(change.min())) - room, max(0.0, float(change.max())) + room]


def _panel_message(panels: Sequence[Panel]) -> str:
    said = []
    for panel in panels:
        own, others = _changes(panel)
        said.append(
            f"{panel.name}: y {number(own, 2, sign=True)} nats, "
            f"{(others > 0).sum():,} of {len(others):,} others rise"
        )
    whole = "; ".join(said)
    return f"{whole[:1].upper()}{whole[1:]}."


_SHAPES = (
    ("sharpness", "fall", "Peakier: more fall", "factor on the logits", "others that fall"),
    ("label_probability", "fall", "Rarer y: more fall", "p_y", "others that fall"),
    ("label_probability", "gain", "Rarer y: i* gains less", "p_y", "Δ log p of i* (nats)"),
)


def shape_plate(points: Sequence[ShapePoint]) -> Plate:
    """Share of the others that fall by sharpness and by p_y, and what i* gains by p_y."""
    figure = go.Figure()
    layout = base_layout(380, margin={"l": 64, "r": 24, "t": 56, "b": 56})
    annotations = []
    sizes = sorted({one.classes for one in points})
    for index, ((shape, what, title, across, up), domain) in enumerate(
        zip(_SHAPES, columns(len(_SHAPES), 0.09), strict=True), start=1
    ):
        axes = {"xaxis": axis_name("x", index), "yaxis": axis_name("y", index)}
        for place, classes in enumerate(sizes):
            own = [one for one in points if (one.shape, one.classes) == (shape, classes)]
            ends = [(getattr(one, f"{what}_low"), getattr(one, f"{what}_high")) for one in own]
            means = [getattr(one, what) for one in own]
            color = _BY_CLASSES[place % len(_BY_CLASSES)]
            figure.add_scatter(
                x=[one.value for one in own],
                y=means,
                mode="lines+markers",
                name=f"V = {classes:,}",
                legendgroup=str(classes),
                showlegend=index == 1,
                line={"color": color, "width": 2.5},
                marker={"size": 6},
                error_y={
                    "array": [high - mean for (_, high), mean in zip(ends, means, strict=True)],
                    "color": color,
                    "thickness": 1.2,
                    "width": 3,
                },
                hovertemplate="%{x:g}: %{y:.3g}<extra>%{fullData.name}</extra>",
                **axes,
            )
        layout[axis_key("x", index)] = {
            "domain": domain,
            "anchor": axes["yaxis"],
            "type": "log",
            "dtick": 1,
            "tickformat": "~g",
            "title": {"text": across},
        }
        layout[axis_key("y", index)] = {
            "anchor": axes["xaxis"],
            "title": {"text": up},
            "tickformat": ".0%" if what == "fall" else "",
        }
        annotations.append(panel_title(title, domain[0], 1.02))
    layout["annotations"] = annotations
    layout["legend"] = {
        "orientation": "h",
        "x": 0.82,
        "xanchor": "right",
        "y": 1.1,
        "yanchor": "bottom",
    }
    figure.update_layout(**layout)
    return Plate(
        "shapes",
        "Shape decides who falls",
        _shape_message(points),
        "A push of size one (η = 1); means over random distributions with 95% intervals. Left: "
        "normal logits times a factor. Middle and right: normal logits in which the pushed class "
        "holds the probability p_y.",
        figure,
    )


def _shape_message(points: Sequence[ShapePoint]) -> str:
    most = max(one.classes for one in points)
    said = []
    for shape, name in (
        ("sharpness", "the logits are made peakier"),
        ("label_probability", "p_y grows"),
    ):
        own = [one for one in points if (one.shape, one.classes) == (shape, most)]
        said.append(f"from {own[0].fall:.0%} to {own[-1].fall:.0%} as {name}")
    return f"Of {most - 1:,} other classes the share that falls goes {' and '.join(said)}."


def step_plate(paths: Sequence[StepPath]) -> Plate:
    """Δ log p of some classes by the size of the step."""
    figure = go.Figure()
    known = {"pushed": REJECTED, "likeliest other": UP}
    for path in paths:
        color = known.get(path.role, HISTORY)
        figure.add_scatter(
            x=path.steps,
            y=path.change,
            mode="lines",
            name=plotly_text(path.role),
            showlegend=path.role in known,
            line={"color": color, "width": 3 if path.role in known else 1.4},
            hovertemplate=f"{plotly_text(path.role)} (p = {path.probability:.3g}), η = %{{x:g}}: "
            "%{y:+.3g} nats<extra></extra>",
        )
    others = [path for path in paths if path.role not in known]
    low = min(min(path.change) for path in others)
    gain = max(max(path.change) for path in paths)
    room = 0.1 * (gain - low)
    figure.add_hline(y=0, line={"color": INK, "width": 1})
    figure.update_layout(
        **base_layout(
            380,
            xaxis={"title": {"text": "size of the step η"}},
            yaxis={"title": {"text": "Δ log p (nats)"}, "range": [low - room, gain + room]},
        )
    )
    turned = sum(path.change[1] > 0 > path.change[-1] for path in others)
    return Plate(
        "step-paths",
        "What has fallen stays fallen",
        f"As the step grows, i* gains up to {number(gain, 2, sign=True)} nats; of {len(others)} "
        f"other classes shown {turned} rise{'s' if turned == 1 else ''} at first and then "
        f"fall{'s' if turned == 1 else ''}, and none that falls comes back.",
        "One random distribution; its median class is pushed. Every curve is concave, so that a "
        "class below its start only falls on. The pushed class leaves the picture.",
        figure,
    )
