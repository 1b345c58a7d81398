"""Learning paths: every kind of answer over each training, and the gap between y* and y⁺."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, Literal

import plotly.graph_objects as go

from dynolab.data.rows import Split, read_rows
from dynolab.errors import ConfigError
from dynolab.probes.paths import LearningPaths, change, learning_paths, peak_change
from dynolab.report.figure import (
    LEGEND_OVER_TITLES,
    Figure,
    add_line,
    buttons,
    outline,
    subplots,
)
from dynolab.report.style import (
    INK,
    KINDS,
    SPLITS,
    in_order,
    objective_name,
    rank_of,
    stage_title,
    style_of,
)
from dynolab.report.text import join, mean_and_ends, with_interval
from dynolab.results.study import ARGMAX, ProbeScore
from dynolab.statistics import band, clear, mean_interval

Paths = Mapping[tuple[str, Split], LearningPaths]
"""Learning paths by the objective's name and the split, trainings in the study's order."""

_Mode = Literal["change", "level"]
_HOVER = "<b>%{fullData.name}</b><br>step %{x}: %{y:.2f} nats%{customdata}<extra></extra>"
_BUTTONS: dict[_Mode, str] = {"change": "Δ since step 0", "level": "log π"}
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
        kinds = in_order({k for s in splits if (stage, s) in paths for k in paths[(stage, s)].logp})
        for kind in sorted(kinds, key=lambda kind: style_of(kind).prominent):
            for trace in _band_and_line(kind, in_legend=kind not in in_legend):
                plot.add_trace(trace, row=1, col=col)
            in_legend.add(kind)
            for (mode, split), view in views.items():
                view += _data_of_view(paths.get((stage, split)), kind, mode)
    _head_groups(plot)
    for trace, data in zip(plot.data, views["change", splits[0]], strict=True):
        trace.update(data)
    plot.update_layout(updatemenus=[buttons([*map(_button, views, views.values())], 1.085)])
    return Figure(
        "paths",
        "What training does to every kind of answer",
        _path_message(paths),
        "Lines: means over prompts of log π(answer), summed over its tokens; bands: 95% intervals "
        "over prompts. Click a name in the legend to hide or show it, double-click to see it "
        "alone.",
        plot,
    )


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
    line = go.Scatter(
        name=style.label,
        hovertemplate=_HOVER,
        showlegend=in_legend,
        mode="lines",
        legendrank=rank_of(kind),
        line={"color": style.color, "dash": style.dash, "width": 3 if style.prominent else 1.4},
        legendgroup=style.label,
    )
    return around, line


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


def _path_message(paths: Paths) -> str:
    names = {"chosen": "the chosen answer", "rejected": "the rejected one", ARGMAX: "y*"}
    parts = []
    for stage in stages_of(paths):
        own = paths.get((stage, "train"))
        moved = [
            f"{name} by {_moved(own, kind)}"
            for kind, name in names.items()
            if own is not None and kind in own.logp
        ]
        if moved:
            parts.append(f"{objective_name(stage)} moves {join(moved)}.")
    if not parts:
        return "No training probed the pairs' own answers."
    return " ".join([*parts, "All in nats, means over training prompts."])


def _moved(paths: LearningPaths, kind: str) -> str:
    """The change since step 0; rise and fall of a path that clearly did both."""
    rise, fall = (mean_interval(part) for part in peak_change(paths.logp[kind]))
    if rise.low > 0 and fall.high < 0:
        return f"{mean_and_ends(rise)[0]} up to its peak ({mean_and_ends(fall)[0]} after it)"
    return mean_and_ends(mean_interval(change(paths.logp[kind])))[0]


def gap_figure(paths: Paths) -> Figure | None:
    """y* and the chosen answer since step 0, the widening between them, and the gap itself."""
    trained = {stage: own for (stage, split), own in paths.items() if split == "train"}
    with_gap = {stage: own for stage, own in trained.items() if own.gap is not None}
    if not with_gap:
        return None
    plot = subplots(
        [*map(stage_title, with_gap)],
        520,
        space=0.06,
        row_heights=(0.64, 0.36),
        row_space=0.12,
        y_title="Δ log π since step 0",
        margin={"l": 64, "r": 24, "t": 84, "b": 52},
        legend=LEGEND_OVER_TITLES | {"x": 1},
    )
    for col, own in enumerate(with_gap.values(), start=1):
        _add_gap(plot, own, col)
        if col > 1:
            first = f"y{len(with_gap) + 1}"
            plot.update_yaxes(matches=first, showticklabels=False, row=2, col=col)
    plot.update_xaxes(title_text="step", row=2)
    plot.update_yaxes(title_text="gap y* − y⁺ (nats)", row=2, col=1)
    return Figure(
        "gap",
        "The squeezing gap: from the chosen answer up to what the model prefers",
        _gap_message(with_gap),
        "Above: y* and the chosen answer y⁺ since step 0; the shaded distance is how far the gap "
        "has grown (y* above) or shrunk. Below: the gap log π(y*) − log π(y⁺) itself with its 95% "
        "band. y* can rise under any training; under squeezing y⁺ does not rise with it and "
        "the gap grows.",
        plot,
    )


def _add_gap(plot: go.Figure, paths: LearningPaths, col: int) -> None:
    assert paths.gap is not None, "stages without a gap are left out"
    for kind, fill in (("chosen", None), (ARGMAX, "tonexty")):
        style = style_of(kind)
        plot.add_scatter(
            x=paths.steps,
            y=band(paths.since_start(kind))[0].round(4),
            mode="lines",
            name=style.label,
            showlegend=col == 1,
            legendgroup=kind,
            line={"color": style.color, "width": 3},
            fill=fill,
            fillcolor="rgba(125, 75, 181, 0.15)" if fill else None,
            hovertemplate="<b>%{fullData.name}</b><br>step %{x}: %{y:+.2f} nats<extra></extra>",
            row=1,
            col=col,
        )
    add_line(
        plot,
        paths.steps,
        band(paths.gap),
        {"color": INK, "width": 2.5},
        where={"row": 2, "col": col},
        opacity=0.12,
        hovertemplate="step %{x}: gap %{y:.2f} nats<extra></extra>",
        showlegend=False,
    )


def _gap_message(with_gap: Mapping[str, LearningPaths]) -> str:
    parts = []
    for stage, paths in with_gap.items():
        assert paths.gap is not None, "stages without a gap are left out"
        moved = mean_interval(change(paths.gap))
        verb = ("widens" if moved.mean > 0 else "narrows") if clear(moved) else "changes"
        start, end = (mean_interval(paths.gap[at]).mean for at in (0, -1))
        ends = f"from {start:.1f} to {end:.1f} nats ({with_interval(moved)})"
        parts.append(f"{objective_name(stage)} {verb} the gap {ends}")
    return "; ".join(parts) + "."
