"""The figure of training curves: losses and DPO's implicit rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from numpy import ndarray

from dynolab.figures.inputs import MetricsLine, StageName
from dynolab.figures.style import (
    BEST,
    CHOSEN,
    INK,
    REJECTED,
    Plate,
    axis_name,
    base_layout,
    join,
    panel_title,
)

_CURVES: tuple[tuple[StageName, str, str, tuple[tuple[str, str, str], ...]], ...] = (
    ("sft", "SFT loss", "nats per example", (("train/loss", "loss", INK),)),
    ("dpo", "DPO loss", "−log σ(margin)", (("train/loss", "loss", INK),)),
    (
        "dpo",
        "DPO implicit rewards",
        "β · log-ratio to the reference",
        (
            ("train/reward_chosen", "chosen", CHOSEN),
            ("train/reward_rejected", "rejected", REJECTED),
            ("train/margin", "margin", BEST),
        ),
    ),
)


def training_plate(metrics: Mapping[StageName, tuple[MetricsLine, ...]]) -> Plate | None:
    """Loss of both stages and the implicit rewards of DPO, step by step."""
    panels = [p for p in _CURVES if any(_series(metrics.get(p[0], ()), c[0])[0].size for c in p[3])]
    if not panels:
        return None
    figure = go.Figure()
    layout = base_layout(340, margin={"l": 64, "r": 24, "t": 40, "b": 84})
    width = (1 - 0.08 * (len(panels) - 1)) / len(panels)
    annotations = []
    for index, (stage, title, unit, curves) in enumerate(panels, start=1):
        left = (index - 1) * (width + 0.08)
        key = "" if index == 1 else str(index)
        for name, label, color in curves:
            x, y = _series(metrics[stage], name)
            if x.size:
                _add_curve(figure, x, y, label, color, index, legend=len(curves) > 1)
        layout[f"xaxis{key}"] = {
            "domain": [left, left + width], "anchor": f"y{key}", "title": {"text": "step"},
        }  # fmt: skip
        layout[f"yaxis{key}"] = {"anchor": f"x{key}", "title": {"text": unit}}
        annotations.append(panel_title(title, left, 1.02))
    layout["annotations"] = annotations
    layout["legend"] = {"orientation": "h", "x": 1, "xanchor": "right", "y": -0.24,
                        "yanchor": "top"}  # fmt: skip
    figure.update_layout(**layout)
    return Plate(
        "training",
        "Loss and margin",
        _training_message(metrics),
        "Thin: the step's own batch; thick: running mean over nine steps.",
        figure,
    )


def _series(
    lines: Sequence[MetricsLine], name: str
) -> tuple[Float[ndarray, steps], Float[ndarray, steps]]:
    pairs = [(line.step, line.metrics[name]) for line in lines if name in line.metrics]
    pairs = [(step, value) for step, value in pairs if value is not None and np.isfinite(value)]
    return np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs], dtype=float)


def _running_mean(y: Float[ndarray, steps], window: int = 9) -> Float[ndarray, steps]:
    """Centred mean over at most `window` steps, fewer at the ends."""
    half = min(window, y.size) // 2
    return np.array([y[max(0, i - half) : i + half + 1].mean() for i in range(y.size)])


def _add_curve(
    figure: go.Figure, x: ndarray, y: ndarray, label: str, color: str, index: int, legend: bool
) -> None:
    axes = {"xaxis": axis_name("x", index), "yaxis": axis_name("y", index), "legendgroup": label}
    figure.add_scatter(
        x=x, y=y, mode="lines", line={"color": color, "width": 1}, opacity=0.3,
        showlegend=False, hoverinfo="skip", **axes,
    )  # fmt: skip
    figure.add_scatter(
        x=x, y=_running_mean(y).round(6), mode="lines", line={"color": color, "width": 2.5},
        name=label, showlegend=legend, customdata=y,
        hovertemplate=f"{label}, step %{{x}}: %{{customdata:.4g}} (mean %{{y:.4g}})<extra></extra>",
        **axes,
    )  # fmt: skip


def _training_message(metrics: Mapping[StageName, tuple[MetricsLine, ...]]) -> str:
    parts = []
    told: tuple[tuple[StageName, str, str], ...] = (
        ("sft", "train/loss", "SFT's loss"),
        ("dpo", "train/loss", "DPO's loss"),
        ("dpo", "train/margin", "its reward margin"),
    )
    for stage, name, what in told:
        y = _series(metrics.get(stage, ()), name)[1]
        if y.size:
            smooth = _running_mean(y)
            parts.append(f"{what} goes from {smooth[0]:#.3g} to {smooth[-1]:#.3g}")
    sentence = join(parts).replace("-", "−")
    return sentence + "." if sentence else ""
