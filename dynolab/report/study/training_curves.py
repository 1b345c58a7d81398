"""The figure of training curves: losses and DPO's implicit rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from numpy import ndarray

from dynolab.report.figure import LEGEND_BELOW, Figure, subplots
from dynolab.report.inputs.study import Training
from dynolab.report.style import BEST, CHOSEN, INK, REJECTED, objective_name
from dynolab.report.text import join, number
from dynolab.results.study import MetricsLine

WINDOW = 9
_UNITS = {"sft": "nats", "sft_extended": "nats", "dpo": "−log σ(margin)"}
_REWARD_UNITS = {"slic": "log π (nats)", "simpo": "β · log π per token"}
_REWARDS = (
    ("train/reward_chosen", "chosen", CHOSEN),
    ("train/reward_rejected", "rejected", REJECTED),
    ("train/margin", "margin", BEST),
)


@dataclass(frozen=True)
class _Panel:
    """Curves of one training: metric, label and colour each."""

    title: str
    unit: str
    lines: Sequence[MetricsLine]
    curves: tuple[tuple[str, str, str], ...]


def training_figure(trainings: Sequence[Training]) -> Figure | None:
    """Loss of every training, and implicit rewards where it has them, step by step."""
    panels = [panel for training in trainings for panel in _panels(training)]
    if not panels:
        return None
    plot = subplots(
        [panel.title for panel in panels],
        340,
        margin={"l": 64, "r": 24, "t": 56, "b": 84},
        legend=LEGEND_BELOW,
        x={"title_text": "step"},
    )
    for col, panel in enumerate(panels, start=1):
        for name, label, color in panel.curves:
            x, y = _series(panel.lines, name)
            if x.size:
                _add_curve(plot, x, y, label, color, col, legend=len(panel.curves) > 1)
        plot.update_yaxes(title_text=panel.unit, col=col)
    return Figure(
        "training",
        "Loss and margin",
        _message(trainings),
        f"Thin: the step's own batch; thick: running mean over {WINDOW} steps, which the "
        "sentence above quotes. A loss that is summed over tokens is larger for a batch of longer "
        "answers.",
        plot,
    )


def _panels(training: Training) -> list[_Panel]:
    stage, lines = training.stage, training.metrics
    name = objective_name(stage)
    reward_unit = _REWARD_UNITS.get(stage, "β · log-ratio to the reference")
    panels = [
        _Panel(f"{name} loss", _UNITS.get(stage, "loss"), lines, (("train/loss", "loss", INK),)),
        _Panel(f"{name} implicit rewards", reward_unit, lines, _REWARDS),
    ]
    return [p for p in panels if any(_series(lines, name)[0].size for name, _, _ in p.curves)]


def _series(
    lines: Sequence[MetricsLine], name: str
) -> tuple[Float[ndarray, " steps"], Float[ndarray, " steps"]]:
    pairs = [(line.step, line.metrics[name]) for line in lines if name in line.metrics]
    pairs = [(step, value) for step, value in pairs if np.isfinite(value)]
    return np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs], dtype=float)


def running_mean(y: Float[ndarray, " steps"], window: int = WINDOW) -> Float[ndarray, " steps"]:
    """Centred mean over at most `window` steps, fewer at the ends."""
    half = min(window, y.size) // 2
    return np.array([y[max(0, i - half) : i + half + 1].mean() for i in range(y.size)])


def _add_curve(
    plot: go.Figure, x: ndarray, y: ndarray, label: str, color: str, col: int, legend: bool
) -> None:
    plot.add_scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": color, "width": 1},
        opacity=0.3,
        showlegend=False,
        hoverinfo="skip",
        legendgroup=label,
        row=1,
        col=col,
    )
    plot.add_scatter(
        x=x,
        y=running_mean(y).round(6),
        mode="lines",
        line={"color": color, "width": 2.5},
        name=label,
        showlegend=legend,
        customdata=y,
        hovertemplate=f"{label}, step %{{x}}: %{{customdata:.4g}} (mean %{{y:.4g}})<extra></extra>",
        legendgroup=label,
        row=1,
        col=col,
    )


def _message(trainings: Sequence[Training]) -> str:
    parts = []
    for training in trainings:
        for name, label in (("train/loss", "loss"), ("train/margin", "reward margin")):
            y = _series(training.metrics, name)[1]
            if y.size:
                smooth = running_mean(y)
                ends = f"from {number(smooth[0])} to {number(smooth[-1])}"
                parts.append(f"{objective_name(training.stage)}'s {label} goes {ends}")
    return join(parts) + "."
