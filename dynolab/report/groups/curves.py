"""Accuracy and entropy of trainings on sampled groups, step by step; pass@k before and after."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from dynolab.comparisons.arm_table import START, ArmTable, pass_names, splits_of
from dynolab.data.rows import Split
from dynolab.report.figure import Figure, add_line, band_of_change, error_bars, subplots
from dynolab.report.inputs.arms import GroupPageInputs, curve
from dynolab.report.study.training_curves import WINDOW, running_mean
from dynolab.report.style import INK, SPLITS, arm_style
from dynolab.report.text import join, number, plotly_text, points, with_interval
from dynolab.rollouts.passes import SAMPLES_PER_K
from dynolab.statistics import Interval, clear

ACCURACY, ENTROPY = "rollout/pass_at_1", "rollout/entropy"
_PANELS = (
    (ACCURACY, "Accuracy of the answers sampled for training", "pass@1", ".0%"),
    (ENTROPY, "Entropy", "nats per token", ".2f"),
)


def curve_figure(inputs: GroupPageInputs) -> Figure | None:
    """pass@1 and entropy of the rollouts of every arm, means over seeds with 95% bands."""
    if not any(curve(inputs.of_arm(arm), ACCURACY)[0].size for arm in inputs.arms):
        return None
    plot = subplots(
        [title for _, title, _, _ in _PANELS],
        420,
        margin={"l": 64, "r": 24, "t": 56, "b": 52},
        x={"title_text": "step"},
    )
    for col, (name, _, unit, form) in enumerate(_PANELS, start=1):
        for place, arm in enumerate(inputs.arms):
            steps, values = _smooth(inputs, arm, name)
            color, dash = arm_style(place)
            add_line(
                plot,
                steps,
                band_of_change(values),
                {"color": color, "dash": dash, "width": 2.5},
                where={"legendgroup": arm, "row": 1, "col": col},
                name=plotly_text(arm, 32),
                showlegend=col == 1,
                hovertemplate=f"%{{fullData.name}}, step %{{x}}: %{{y:{form}}}<extra></extra>",
            )
        plot.update_yaxes(title_text=unit, tickformat=form, col=col)
    return Figure(
        "accuracy",
        "What training does to the answers",
        _curve_message(inputs),
        f"Lines: means over seeds of each run's running mean over {WINDOW} steps; bands: 95% "
        "t-intervals over seeds of the change since the first step. All arms of a seed see the "
        "same prompts in the same order. Click a name in the legend to hide or show it.",
        plot,
    )


def _smooth(
    inputs: GroupPageInputs, arm: str, name: str
) -> tuple[Int[ndarray, " steps"], Float[ndarray, "steps seeds"]]:
    steps, values = curve(inputs.of_arm(arm), name)
    if not steps.size:
        return steps, values
    return steps, np.stack([running_mean(seed) for seed in values.T], axis=1)


def _curve_message(inputs: GroupPageInputs) -> str:
    parts = []
    for arm in inputs.arms:
        values = _smooth(inputs, arm, ACCURACY)[1].mean(axis=1)
        if values.size:
            parts.append(f"under {arm} from {values[0]:.0%} to {values[-1]:.0%}")
    right = f"The share of right answers among those sampled goes {join(parts)}."
    entropy = _smooth(inputs, inputs.baseline, ENTROPY)[1].mean(axis=1)
    if not entropy.size:
        return right
    ends = f"from {number(entropy[0], 2)} to {number(entropy[-1], 2)} nats per token"
    return f"{right} The entropy goes {ends} under {inputs.baseline}."


def pass_figure(inputs: GroupPageInputs, figures: ArmTable) -> Figure | None:
    """pass@k of every arm and of the start, a panel for each split."""
    splits = splits_of(figures.names)
    if not splits:
        return None
    plot = subplots(
        [f"{SPLITS[split]} prompts" for split in splits],
        460,
        margin={"l": 64, "r": 24, "t": 56, "b": 52},
        x={"type": "log", "title_text": "k"},
        y={"tickformat": ".0%"},
        y_title="pass@k",
    )
    for col, split in enumerate(splits, start=1):
        names = pass_names(figures.names, split)
        ks = [*map(_k, names)]
        for place, arm in enumerate((START, *inputs.arms)):
            means = [figures.mean(arm, name) for name in names]
            color, dash = (INK, "dot") if arm == START else arm_style(place - 1)
            plot.add_scatter(
                x=ks,
                y=[round(mean.mean, 6) if mean.n else None for mean in means],
                mode="lines+markers",
                name=plotly_text(arm, 32),
                legendgroup=arm,
                showlegend=col == 1,
                line={"color": color, "dash": dash, "width": 2.5},
                marker={"size": 6},
                error_y=error_bars(means, color, thickness=1, width=3),
                customdata=[with_interval(mean, sign=False) for mean in means],
                hovertemplate="%{fullData.name}, pass@%{x}: %{customdata}<extra></extra>",
                row=1,
                col=col,
            )
        plot.update_xaxes(tickvals=ks, ticktext=[*map(str, ks)], col=col)
    return Figure(
        "pass-at-k",
        "What k samples solve",
        _pass_message(inputs, figures, splits),
        "pass@k: the chance that k samples to a prompt contain a right one, estimated without bias "
        f"(Chen et al., arXiv 2107.03374) from at least {SAMPLES_PER_K} k samples; means over "
        f"prompts, then over seeds, with 95% t-intervals over {inputs.unit}. A training that "
        "only makes likely answers likelier raises the left end and lowers the right one.",
        plot,
    )


def _k(name: str) -> int:
    return int(name.rpartition("_")[2])


def _pass_message(inputs: GroupPageInputs, figures: ArmTable, splits: Sequence[Split]) -> str:
    parts = []
    for split in splits:
        names = pass_names(figures.names, split)
        moved = [
            f"pass@{_k(name)} {_moved(figures.difference(inputs.baseline, START, name))}"
            for name in (names[0], names[-1])
        ]
        parts.append(f"on {SPLITS[split]} prompts {' and '.join(moved)} under {inputs.baseline}")
    message = "; ".join(parts)
    return f"{message[0].upper()}{message[1:]}."


def _moved(change: Interval) -> str:
    """`rises`, `falls` or, if unclear, `changes`, with the change in percentage points."""
    verb = ("rises" if change.mean > 0 else "falls") if clear(change) else "changes"
    return f"{verb} by {points(change)} points"
