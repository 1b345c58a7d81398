"""The figure of learning paths: every kind of answer over each training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dynolab.data.rows import Split, read_rows
from dynolab.errors import ConfigError
from dynolab.probes.paths import LearningPaths, change, learning_paths, peak_change
from dynolab.report.style import (
    KINDS,
    SPLITS,
    Plate,
    axis_key,
    axis_name,
    base_layout,
    buttons,
    columns,
    in_order,
    join,
    mean_and_ends,
    objective_name,
    panel_title,
    rank_of,
    stage_title,
    style_of,
)
from dynolab.results.study import ARGMAX, ProbeScore
from dynolab.statistics import band, mean_interval

Paths = Mapping[tuple[str, Split], LearningPaths]
"""Learning paths by the objective's name and the split, trainings in the study's order."""

_HOVER = "<b>%{fullData.name}</b><br>step %{x}: %{y:.2f} nats%{customdata}<extra></extra>"


def learning_path_plate(paths: Paths) -> Plate | None:
    """Mean log-probability of every kind over each training, with 95% bands over pairs."""
    stages = stages_of(paths)
    if not stages:
        return None
    traces: list[go.Scatter] = []
    views: dict[tuple[str, Split], list[dict[str, Any]]] = {}
    splits: list[Split] = [s for s in SPLITS if any((stage, s) in paths for stage in stages)]
    modes = ("change", "level")
    for split in splits:
        for mode in modes:
            views[(mode, split)] = []
    told = set[str]()
    for column, stage in enumerate(stages):
        kinds = in_order({k for s in splits if (stage, s) in paths for k in paths[(stage, s)].logp})
        for kind in sorted(kinds, key=lambda kind: style_of(kind).prominent):
            traces += _kind_traces(kind, column, first=kind not in told)
            told.add(kind)
            for (mode, split), view in views.items():
                view += _kind_data(paths.get((stage, split)), kind, mode)
    _head_groups(traces)
    first = views[("change", splits[0])]
    for trace, data in zip(traces, first, strict=True):
        trace.update(data)
    figure = go.Figure(traces)
    layout = base_layout(560, margin={"l": 64, "r": 24, "t": 92, "b": 52})
    annotations = []
    for index, (stage, domain) in enumerate(
        zip(stages, columns(len(stages), 0.08), strict=True), start=1
    ):
        layout[axis_key("x", index)] = {"domain": domain, "title": {"text": "step"}}
        layout[axis_key("y", index)] = {"anchor": axis_name("x", index)}
        annotations.append(panel_title(stage_title(stage), domain[0], 1.01))
    layout["yaxis"]["title"] = {"text": _Y_TITLE["change"]}
    layout["annotations"] = annotations
    if len(views) > 1:
        choices = []
        for (mode, split), view in views.items():
            label = {"change": "Δ since step 0", "level": "log π"}[mode] + f", {SPLITS[split]}"
            keys = {key for data in view for key in data}
            update = {key: [data.get(key) for data in view] for key in keys}
            choices.append((label, [update, {"yaxis.title.text": _Y_TITLE[mode]}]))
        layout["updatemenus"] = [buttons(choices, 1.085)]
    figure.update_layout(**layout)
    return Plate(
        "paths",
        "What training does to every kind of answer",
        _paths_message(paths),
        "Lines: means over prompts of log π(answer), summed over its tokens; bands: 95% intervals "
        "over prompts. Click a name in the legend to hide or show it, double-click to see it "
        "alone.",
        figure,
    )


def paths_figure(file: Path, name: str = "training") -> go.Figure:
    """The figure of one training's learning paths.

    **Arguments:**

    - `file`: its `probes.jsonl`, probed at two steps at least.
    - `name`: what the training is called above it.

    **Raises:** `ConfigError` where there is nothing to draw.
    """
    rows = list(read_rows(file, ProbeScore))
    found = {(name, split): learning_paths(rows, split) for split in SPLITS}
    plate = learning_path_plate({key: paths for key, paths in found.items() if paths is not None})
    if plate is None:
        raise ConfigError(str(file), f"{len(rows)} rows", "a path needs probes at two steps")
    return plate.figure


_Y_TITLE = {"change": "Δ log π since step 0 (nats)", "level": "log π (nats)"}


def stages_of(paths: Paths) -> list[str]:
    """The objectives that were probed, in the study's order."""
    return list(dict.fromkeys(stage for stage, _ in paths))


def _kind_traces(kind: str, column: int, first: bool) -> list[go.Scatter]:
    style = style_of(kind)
    shared = {
        "legendgroup": style.label,
        "xaxis": axis_name("x", column + 1),
        "yaxis": axis_name("y", column + 1),
    }
    return [
        go.Scatter(
            fill="toself",
            fillcolor=style.color,
            line={"width": 0, "color": style.color},
            opacity=0.16 if style.prominent else 0.08,
            hoverinfo="skip",
            showlegend=False,
            mode="lines",
            **shared,
        ),
        go.Scatter(
            name=style.label,
            hovertemplate=_HOVER,
            showlegend=first,
            mode="lines",
            legendrank=rank_of(kind),
            line={"color": style.color, "dash": style.dash, "width": 3 if style.prominent else 1.4},
            **shared,
        ),
    ]


def _head_groups(traces: list[go.Scatter]) -> None:
    """Names a group of kinds once, over the first of its kinds."""
    groups = {style.label: style.group for style in KINDS.values()}
    named = set[str]()
    for trace in sorted(traces, key=lambda trace: trace.legendrank or 0):
        group = groups.get(trace.name, "Other")
        if trace.showlegend and group not in named:
            trace.legendgrouptitle = {"text": group}
            named.add(group)


def _kind_data(paths: LearningPaths | None, kind: str, mode: str) -> list[dict[str, Any]]:
    """What changes from view to view of a kind's two traces: band, line."""
    if paths is None or kind not in paths.logp:
        return [{"x": [], "y": [], "customdata": []}] * 2
    values = paths.since_start(kind) if mode == "change" else paths.logp[kind]
    mean, low, high = band(values)
    x = paths.steps
    inside = np.isfinite(low)
    ends = [f"<br>95%: {a:.2f} … {b:.2f}" for a, b in zip(low, high, strict=True)]
    return [
        {
            "x": np.concatenate([x[inside], x[inside][::-1]]).tolist(),
            "y": np.concatenate([high[inside], low[inside][::-1]]).round(4).tolist(),
            "customdata": [],
        },
        {"x": x.tolist(), "y": mean.round(4).tolist(), "customdata": ends},
    ]


def _paths_message(paths: Paths) -> str:
    parts = []
    for stage in stages_of(paths):
        found = paths.get((stage, "train"))
        moved = [
            f"{name} by {_moved(found, kind)}"
            for kind, name in (
                ("chosen", "the chosen answer"),
                ("rejected", "the rejected one"),
                (ARGMAX, "y*"),
            )
            if found is not None and kind in found.logp
        ]
        if moved:
            parts.append(f"{objective_name(stage)} moves {join(moved)}.")
    if not parts:
        return "No training probed the pairs' own answers."
    return " ".join([*parts, "All in nats, means over training prompts."])


def _moved(paths: LearningPaths, kind: str) -> str:
    """The change since step 0; of a path that rose and fell, each beyond its interval, both."""
    rise, fall = (mean_interval(part) for part in peak_change(paths.logp[kind]))
    if rise.low > 0 and fall.high < 0:
        return f"{mean_and_ends(rise)[0]} up to its peak ({mean_and_ends(fall)[0]} after it)"
    return mean_and_ends(mean_interval(change(paths.logp[kind])))[0]
