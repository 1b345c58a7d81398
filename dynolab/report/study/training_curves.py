"""The figure of training curves: losses and DPO's implicit rewards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.report.figure import Figure
from dynolab.report.inputs.study import Training
from dynolab.report.lines import Line, LinePanel, line_plot
from dynolab.report.style import objective_name
from dynolab.report.words import Words
from dynolab.statistics import Interval

WINDOW = 9
_LOSS = {"train/loss": "loss"}
_REWARDS = {
    "train/reward_chosen": "chosen",
    "train/reward_rejected": "rejected",
    "train/margin": "margin",
}


def training_figure(trainings: Sequence[Training]) -> Figure | None:
    """Loss of every training, and implicit rewards where it has them: running means by step."""
    panels = [
        LinePanel(f"{objective_name(training.stage)} {title}", "step", "", lines)
        for training in trainings
        for title, names in (("loss", _LOSS), ("implicit rewards", _REWARDS))
        if (
            lines := [
                line for name, label in names.items() for line in _line(training, name, label)
            ]
        )
    ]
    words = Words("study.html", window=WINDOW)
    return words.figure("training", line_plot(panels)) if panels else None


def _line(training: Training, name: str, label: str) -> list[Line]:
    """A metric's running mean; empty without finite values."""
    known = [
        (line.step, value)
        for line in training.metrics
        if np.isfinite(value := line.metrics.get(name, np.nan))
    ]
    if not known:
        return []
    steps, values = zip(*known, strict=True)
    means = running_mean(np.array(values))
    return [Line(label, steps, [Interval(mean, np.nan, np.nan, 1) for mean in means.tolist()])]


def running_mean(y: Float[ndarray, " steps"], window: int = WINDOW) -> Float[ndarray, " steps"]:
    """Centred mean over at most `window` steps, fewer at the ends."""
    half = min(window, y.size) // 2
    return np.array([y[max(0, i - half) : i + half + 1].mean() for i in range(y.size)])
