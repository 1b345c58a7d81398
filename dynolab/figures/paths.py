"""The figure of learning paths: every kind of answer over SFT and DPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from numpy import ndarray

from dynolab.data.rows import Split
from dynolab.figures.inputs import StageName
from dynolab.figures.intervals import band, change, mean_interval, peak_change
from dynolab.figures.learning_paths import ARGMAX, LearningPaths
from dynolab.figures.style import (
    KINDS,
    Plate,
    base_layout,
    buttons,
    in_order,
    join,
    mean_and_ends,
    panel_title,
    rank_of,
    style_of,
)

Paths = Mapping[tuple[StageName, Split], LearningPaths]
STAGE_TITLE: dict[StageName, str] = {"sft": "Supervised fine-tuning", "dpo": "DPO"}
SPLITS: dict[Split, str] = {"train": "training", "heldout": "held-out"}
_HOVER = "<b>%{fullData.name}</b><br>step %{x}: %{y:.2f} nats%{customdata}<extra></extra>"


def learning_path_plate(paths: Paths) -> Plate | None:
    """Mean log-probability of every kind over SFT and DPO, with 95% bands over pairs."""
    stages = _stages(paths)
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
    width = (1 - 0.08 * (len(stages) - 1)) / len(stages)
    layout = base_layout(560, margin={"l": 64, "r": 24, "t": 92, "b": 52})
    annotations = []
    for column, stage in enumerate(stages):
        left = column * (width + 0.08)
        suffix = "" if column == 0 else str(column + 1)
        layout[f"xaxis{suffix}"] = {"domain": [left, left + width], "title": {"text": "step"}}
        layout[f"yaxis{suffix}"] = {"anchor": f"x{suffix}"}
        annotations.append(panel_title(STAGE_TITLE[stage], left, 1.01))
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


_Y_TITLE = {"change": "Δ log π since step 0 (nats)", "level": "log π (nats)"}


def _stages(paths: Paths) -> list[StageName]:
    return [s for s in STAGE_TITLE if (s, "train") in paths or (s, "heldout") in paths]


def _kind_traces(kind: str, column: int, first: bool) -> list[go.Scatter]:
    style = style_of(kind)
    axis = "" if column == 0 else str(column + 1)
    shared = {"legendgroup": style.label, "xaxis": f"x{axis}", "yaxis": f"y{axis}"}
    return [
        go.Scatter(
            fill="toself", fillcolor=style.color, line={"width": 0, "color": style.color},
            opacity=0.16 if style.prominent else 0.08, hoverinfo="skip", showlegend=False,
            mode="lines", **shared,
        ),
        go.Scatter(
            name=style.label, hovertemplate=_HOVER, showlegend=first, mode="lines",
            legendrank=rank_of(kind),
            line={"color": style.color, "dash": style.dash,
                  "width": 3 if style.prominent else 1.4}, **shared,
        ),
    ]  # fmt: skip


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
    sft, dpo = paths.get(("sft", "train")), paths.get(("dpo", "train"))
    if sft is not None and "chosen" in sft.logp:
        text = f"SFT moves the chosen answer by {_change(sft, 'chosen')}"
        if "rejected" in sft.logp:
            rise, fall = (_mean(x) for x in peak_change(sft.logp["rejected"]))
            text += f" nats and the rejected one by {rise} up to its peak and {fall} after it"
        parts.append(text + ".")
    if dpo is not None and "chosen" in dpo.logp:
        moved = [f"the chosen answer by {_change(dpo, 'chosen')}"]
        if "rejected" in dpo.logp:
            moved.append(f"the rejected one by {_change(dpo, 'rejected')}")
        if ARGMAX in dpo.logp:
            moved.append(f"y* by {_change(dpo, ARGMAX)}")
        parts.append(f"DPO moves {join(moved)} nats.")
    return " ".join(parts) or "Neither stage probed the chosen answer."


def _change(paths: LearningPaths, kind: str) -> str:
    return _mean(change(paths.logp[kind]))


def _mean(values: Float[ndarray, pairs]) -> str:
    return mean_and_ends(mean_interval(values))[0]
