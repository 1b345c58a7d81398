"""The figure of pass@k against k: what repeated sampling solves before and after training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from dynolab.comparisons.group_arms import START, ArmTable, pass_names, splits_of
from dynolab.data.rows import Split
from dynolab.report.inputs.groups import GroupPageInputs
from dynolab.report.panels.arm_style import arm_style
from dynolab.report.style import (
    INK,
    SPLITS,
    Plate,
    axis_key,
    axis_name,
    base_layout,
    columns,
    panel_title,
    plotly_text,
    points,
    with_interval,
)
from dynolab.rollouts.passes import SAMPLES_PER_K
from dynolab.statistics import Interval, clear


def _level(name: str) -> int:
    return int(name.rpartition("_")[2])


def pass_plate(inputs: GroupPageInputs, figures: ArmTable) -> Plate | None:
    """pass@k of every arm and of the start, a panel for each split."""
    splits = splits_of(figures.names)
    if not splits:
        return None
    figure = go.Figure()
    layout = base_layout(460, margin={"l": 64, "r": 24, "t": 56, "b": 52})
    annotations = []
    for index, (split, domain) in enumerate(
        zip(splits, columns(len(splits), 0.08), strict=True), start=1
    ):
        names = pass_names(figures.names, split)
        ks = [_level(name) for name in names]
        for place, arm in enumerate((START, *inputs.arms)):
            _add_arm(figure, figures, arm, place - 1, names, index)
        layout[axis_key("x", index)] = {
            "domain": domain,
            "anchor": axis_name("y", index),
            "type": "log",
            "tickvals": ks,
            "ticktext": [str(k) for k in ks],
            "title": {"text": "k"},
        }
        layout[axis_key("y", index)] = {"anchor": axis_name("x", index), "tickformat": ".0%"}
        annotations.append(panel_title(f"{SPLITS[split]} prompts", domain[0], 1.02))
    layout["yaxis"]["title"] = {"text": "pass@k"}
    layout["annotations"] = annotations
    figure.update_layout(**layout)
    return Plate(
        "pass-at-k",
        "What k samples solve",
        _message(inputs, figures, splits),
        "pass@k: the chance that k samples to a prompt hold a right one, estimated without bias "
        f"(Chen et al., arXiv 2107.03374) from at least {SAMPLES_PER_K} k samples; means over "
        f"prompts, then over seeds, with 95% t-intervals over {inputs.unit}. A training that "
        "only makes likely answers likelier raises the left end and lowers the right one.",
        figure,
    )


def _add_arm(
    figure: go.Figure, figures: ArmTable, arm: str, place: int, names: Sequence[str], index: int
) -> None:
    means = [figures.mean(arm, name) for name in names]
    color, dash = (INK, "dot") if arm == START else arm_style(place)
    half = [one.high - one.mean if np.isfinite(one.high) else None for one in means]
    figure.add_scatter(
        x=[_level(name) for name in names],
        y=[round(one.mean, 6) if one.n else None for one in means],
        mode="lines+markers",
        name=plotly_text(arm, 32),
        legendgroup=arm,
        showlegend=index == 1,
        line={"color": color, "dash": dash, "width": 2.5},
        marker={"size": 6},
        error_y={"array": half, "color": color, "thickness": 1, "width": 3},
        customdata=[with_interval(one, sign=False) for one in means],
        hovertemplate="%{fullData.name}, pass@%{x}: %{customdata}<extra></extra>",
        xaxis=axis_name("x", index),
        yaxis=axis_name("y", index),
    )


def _message(inputs: GroupPageInputs, figures: ArmTable, splits: Sequence[Split]) -> str:
    parts = []
    for split in splits:
        names = pass_names(figures.names, split)
        moved = [
            f"pass@{_level(name)} {_moved(figures.difference(inputs.baseline, START, name))}"
            for name in (names[0], names[-1])
        ]
        parts.append(f"on {SPLITS[split]} prompts {' and '.join(moved)} under {inputs.baseline}")
    said = "; ".join(parts)
    return f"{said[0].upper()}{said[1:]}."


def _moved(change: Interval) -> str:
    """Rises, falls or changes unclearly, in points of a hundred."""
    verb = ("rises" if change.mean > 0 else "falls") if clear(change) else "changes"
    return f"{verb} by {points(change)} points"
