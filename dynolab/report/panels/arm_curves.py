"""The figure of trainings on sampled groups: accuracy and entropy of the answers, step by step."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int
from numpy import ndarray

from dynolab.report.inputs.groups import GroupPageInputs, curve
from dynolab.report.panels.arm_style import arm_style
from dynolab.report.panels.curves import WINDOW, running_mean
from dynolab.report.style import (
    Plate,
    axis_key,
    axis_name,
    base_layout,
    columns,
    join,
    number,
    panel_title,
    plotly_text,
)
from dynolab.statistics import band

ACCURACY, ENTROPY = "rollout/pass_at_1", "rollout/entropy"
_PANELS = (
    (ACCURACY, "Accuracy of the answers sampled to learn from", "pass@1", ".0%"),
    (ENTROPY, "Entropy", "nats per token", ".2f"),
)


def arm_curve_plate(inputs: GroupPageInputs) -> Plate | None:
    """pass@1 and entropy of the rollouts of every arm, means over seeds with 95% bands."""
    if not any(curve(inputs.of_arm(arm), ACCURACY)[0].size for arm in inputs.arms):
        return None
    figure = go.Figure()
    layout = base_layout(420, margin={"l": 64, "r": 24, "t": 56, "b": 52})
    annotations = []
    for index, ((name, title, unit, form), domain) in enumerate(
        zip(_PANELS, columns(len(_PANELS), 0.08), strict=True), start=1
    ):
        for number_, arm in enumerate(inputs.arms):
            _add_arm(figure, inputs, arm, number_, name, index, form)
        layout[axis_key("x", index)] = {
            "domain": domain,
            "anchor": axis_name("y", index),
            "title": {"text": "step"},
        }
        layout[axis_key("y", index)] = {
            "anchor": axis_name("x", index),
            "title": {"text": unit},
            "tickformat": form,
        }
        annotations.append(panel_title(title, domain[0], 1.02))
    layout["annotations"] = annotations
    figure.update_layout(**layout)
    return Plate(
        "accuracy",
        "What training does to the answers",
        _message(inputs),
        f"Lines: means over seeds of each run's running mean over {WINDOW} steps; bands: 95% "
        "t-intervals over seeds of the change since the first step. All arms of a seed see the "
        "same prompts in the same order. Click a name in the legend to hide or show it.",
        figure,
    )


def _smooth(
    inputs: GroupPageInputs, arm: str, name: str
) -> tuple[Int[ndarray, " steps"], Float[ndarray, "steps seeds"]]:
    steps, values = curve(inputs.of_arm(arm), name)
    if not steps.size:
        return steps, values
    return steps, np.stack([running_mean(seed) for seed in values.T], axis=1)


def _add_arm(
    figure: go.Figure,
    inputs: GroupPageInputs,
    arm: str,
    place: int,
    name: str,
    index: int,
    form: str,
) -> None:
    steps, values = _smooth(inputs, arm, name)
    # Seeds start from different models; what a band is for is the change.
    mean, low, high = band(values - values[:1] + values[:1].mean(axis=1, keepdims=True))
    color, dash = arm_style(place)
    axes = {"xaxis": axis_name("x", index), "yaxis": axis_name("y", index), "legendgroup": arm}
    inside = np.isfinite(low)
    figure.add_scatter(
        x=np.concatenate([steps[inside], steps[inside][::-1]]),
        y=np.concatenate([high[inside], low[inside][::-1]]).round(5),
        fill="toself",
        fillcolor=color,
        opacity=0.1,
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
        **axes,
    )
    figure.add_scatter(
        x=steps,
        y=mean.round(5),
        mode="lines",
        name=plotly_text(arm, 32),
        showlegend=index == 1,
        line={"color": color, "dash": dash, "width": 2.5},
        hovertemplate=f"%{{fullData.name}}, step %{{x}}: %{{y:{form}}}<extra></extra>",
        **axes,
    )


def _message(inputs: GroupPageInputs) -> str:
    parts = []
    for arm in inputs.arms:
        values = _smooth(inputs, arm, ACCURACY)[1].mean(axis=1)
        if values.size:
            parts.append(f"under {arm} from {values[0]:.0%} to {values[-1]:.0%}")
    entropy = _smooth(inputs, inputs.baseline, ENTROPY)[1].mean(axis=1)
    said = f"Of the answers that are sampled, {join(parts)} are right."
    if entropy.size:
        ends = f"from {number(entropy[0], 2)} to {number(entropy[-1], 2)} nats per token"
        said += f" The entropy goes {ends} under {inputs.baseline}."
    return said
