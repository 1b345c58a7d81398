"""A study's figures by step: learning paths, gap y* − y⁺, risen probability, losses, rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from numpy import ndarray

from dynolab.data.rows import Split, read_rows
from dynolab.errors import ConfigError
from dynolab.probes.paths import LearningPaths, learning_paths
from dynolab.report.figure import Figure, buttons, outline, subplots
from dynolab.report.inputs.study import Squeezing
from dynolab.report.page import Words
from dynolab.report.plots import Line, LinePanel, line_plot
from dynolab.report.style import (
    KINDS,
    SPLITS,
    in_order,
    objective_name,
    plotly_text,
    rank_of,
    stage_title,
    style_of,
)
from dynolab.results.study import ProbeScore, Training
from dynolab.squeezing.index import chosen_by_step, own_share, squeeze_index
from dynolab.statistics import Interval, band, mean_interval

Paths = Mapping[tuple[str, Split], LearningPaths]
"""Learning paths by the objective's name and the split, trainings in the study's order."""

_Mode = Literal["change", "level"]
_HOVER = "<b>%{fullData.name}</b><br>step %{x}: %{y:.2f} nats%{customdata}<extra></extra>"
_BUTTONS: dict[_Mode, str] = {"change": "Δ since step 0", "level": "log π"}
WINDOW = 9
_LOSS = {"train/loss": "loss"}
_REWARDS = {
    "train/reward_chosen": "chosen",
    "train/reward_rejected": "rejected",
    "train/margin": "margin",
}
_RATES = "train/dynamic_learning_rate/q{}"
_TAKERS = {"y* at the start": squeeze_index, "the answer’s own token": own_share}
_Y_TITLES: dict[_Mode, str] = {"change": "Δ log π since step 0 (nats)", "level": "log π (nats)"}


def stages_of(paths: Paths) -> list[str]:
    """The objectives that were probed, in the study's order."""
    return list(dict.fromkeys(stage for stage, _ in paths))


def learning_path_figure(paths: Paths) -> Figure | None:
    """Mean log-probability of every kind over each training, with 95% bands over pairs."""
    stages = stages_of(paths)
    if not stages:
        return None
    splits: list[Split] = [s for s in SPLITS if any((stage, s) in paths for stage in stages)]
    views: dict[tuple[_Mode, Split], list[dict[str, Any]]] = {
        (mode, split): [] for split, mode in product(splits, _BUTTONS)
    }
    plot = subplots(
        [stage_title(stage) for stage in stages],
        560,
        margin={"l": 64, "r": 24, "t": 92, "b": 52},
        x={"title_text": "step"},
        y_title=_Y_TITLES["change"],
    )
    in_legend = set[str]()
    for col, stage in enumerate(stages, start=1):
        kinds: set[str] = set()
        for split in splits:
            if (stage, split) in paths:
                kinds |= paths[stage, split].logp.keys()
        for kind in sorted(in_order(kinds), key=lambda kind: style_of(kind).prominent):
            for trace in _band_and_line(kind, in_legend=kind not in in_legend):
                plot.add_trace(trace, row=1, col=col)
            in_legend.add(kind)
            for (mode, split), view in views.items():
                view += _data_of_view(paths.get((stage, split)), kind, mode)
    _head_groups(plot)
    for trace, data in zip(plot.data, views["change", splits[0]], strict=True):
        trace.update(data)
    plot.update_layout(updatemenus=[buttons([*map(_button, views, views.values())], 1.085)])
    return Words("study.html").figure("paths", plot)


def paths_figure(file: Path, name: str = "training") -> go.Figure:
    """The figure of one training's learning paths.

    **Arguments:**

    - `file`: its `probes.jsonl`, probed at two steps at least.
    - `name`: the training's name in the heading.

    **Raises:** `ConfigError` if there is nothing to draw.
    """
    rows = list(read_rows(file, ProbeScore))
    by_split = {(name, split): learning_paths(rows, split) for split in SPLITS}
    figure = learning_path_figure({at: paths for at, paths in by_split.items() if paths})
    if figure is None:
        raise ConfigError(str(file), f"{len(rows)} rows", "a path needs probes at two steps")
    return figure.plot


def _band_and_line(kind: str, in_legend: bool) -> tuple[go.Scatter, go.Scatter]:
    style = style_of(kind)
    around = go.Scatter(
        fill="toself",
        fillcolor=style.color,
        line={"width": 0, "color": style.color},
        opacity=0.16 if style.prominent else 0.08,
        hoverinfo="skip",
        showlegend=False,
        mode="lines",
        legendgroup=style.label,
    )
    return around, go.Scatter(
        name=style.label,
        hovertemplate=_HOVER,
        showlegend=in_legend,
        mode="lines",
        legendrank=rank_of(kind),
        line={"color": style.color, "dash": style.dash, "width": 3 if style.prominent else 1.4},
        legendgroup=style.label,
    )


def _head_groups(plot: go.Figure) -> None:
    """Puts a group's heading over the first of its kinds in the legend."""
    groups = {style.label: style.group for style in KINDS.values()}
    named = set[str]()
    for trace in sorted(plot.data, key=lambda trace: trace.legendrank or 0):
        group = groups.get(trace.name, "Other")
        if trace.showlegend and group not in named:
            trace.legendgrouptitle = {"text": group}
            named.add(group)


def _data_of_view(paths: LearningPaths | None, kind: str, mode: _Mode) -> list[dict[str, Any]]:
    """Data of a kind's two traces, band and line, in one view."""
    if paths is None or kind not in paths.logp:
        return [{"x": [], "y": [], "customdata": []}] * 2
    mean, low, high = band(paths.since_start(kind) if mode == "change" else paths.logp[kind])
    x, y = outline(paths.steps, low, high)
    ends = [f"<br>95%: {a:.2f} … {b:.2f}" for a, b in zip(low, high, strict=True)]
    return [
        {"x": x.tolist(), "y": y.tolist(), "customdata": []},
        {"x": paths.steps.tolist(), "y": mean.round(4).tolist(), "customdata": ends},
    ]


def _button(
    view: tuple[_Mode, Split], traces: list[dict[str, Any]]
) -> tuple[str, list[dict[str, Any]]]:
    mode, split = view
    update = {key: [data[key] for data in traces] for key in ("x", "y", "customdata")}
    return f"{_BUTTONS[mode]}, {SPLITS[split]}", [update, {"yaxis.title.text": _Y_TITLES[mode]}]


def gap_figure(paths: Paths) -> Figure | None:
    """The squeezing gap `log π(y*) − log π(y⁺)` of training pairs over each training, in nats."""
    panels = []
    for (stage, split), of_split in paths.items():
        if split == "train" and of_split.gap is not None:
            line = Line("gap", of_split.steps.tolist(), list(map(mean_interval, of_split.gap)))
            panels.append(LinePanel(stage_title(stage), "step", "gap y* − y⁺ (nats)", [line]))
    return Words("study.html").figure("gap", line_plot(panels)) if panels else None


def squeezing_figure(squeezing: Squeezing, titles: Mapping[str, str]) -> Figure | None:
    """Shares of the risen probability by step, training by training; None where nothing rose.

    **Arguments:** `titles`: the trainings' names on the page, by name.
    """
    panels = []
    unit = "share of the risen probability"
    for name, by_step in chosen_by_step(squeezing.risen).items():
        steps = sorted(by_step)
        if squeeze_index(by_step[steps[-1]]).n:
            lines = []
            for taker, share in _TAKERS.items():
                lines.append(Line(taker, steps, [share(by_step[step]) for step in steps]))
            title = plotly_text(titles.get(name, name))
            panels.append(LinePanel(title, "step", unit, lines, ".0%", zero=True))
    return Words("study.html").figure("squeezing", line_plot(panels)) if panels else None


def training_figure(trainings: Sequence[Training]) -> Figure | None:
    """Loss of every training, and implicit rewards where it has them: running means by step; and
    the dynamic learning rates that push its answers.
    """
    panels = []
    for training in trainings:
        for title, names in (("loss", _LOSS), ("implicit rewards", _REWARDS)):
            lines: list[Line] = []
            for name, label in names.items():
                lines += _line(training, name, label)
            if lines:
                heading = f"{objective_name(training.stage)} {title}"
                panels.append(LinePanel(heading, "step", "", lines))
        rates = _learning_rates(training)
        if rates:
            heading = f"{objective_name(training.stage)} dynamic rate"
            panels.append(LinePanel(heading, "step", "", rates, zero=True))
    words = Words("study.html", window=WINDOW)
    return words.figure("training", line_plot(panels)) if panels else None


def _line(training: Training, name: str, label: str) -> list[Line]:
    """A metric's running mean; empty without finite values."""
    steps, values = [], []
    for line in training.metrics:
        value = line.metrics.get(name, np.nan)
        if np.isfinite(value):
            steps.append(line.step)
            values.append(value)
    if not steps:
        return []
    means = running_mean(np.array(values))
    return [Line(label, steps, [Interval(mean, np.nan, np.nan, 1) for mean in means.tolist()])]


def _learning_rates(training: Training) -> list[Line]:
    """The answers' dynamic learning rates by step: their median, and a band of 90 % of them."""
    lower, median, upper = (_RATES.format(quantile) for quantile in ("05", "50", "95"))
    steps, rates = [], []
    for line in training.metrics:
        metrics = line.metrics
        if median in metrics:
            steps.append(line.step)
            rates.append(Interval(metrics[median], metrics[lower], metrics[upper], 1))
    return [Line("median", steps, rates)] if steps else []


def running_mean(y: Float[ndarray, " steps"]) -> Float[ndarray, " steps"]:
    """Centred mean over at most `WINDOW` steps, fewer at the ends."""
    half = min(WINDOW, y.size) // 2
    return np.array([y[max(0, i - half) : i + half + 1].mean() for i in range(y.size)])
