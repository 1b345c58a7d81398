"""The page of supervision under label noise, and of learning speed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from dynolab.report.figure import Figure
from dynolab.report.page import Section, section, table
from dynolab.report.plots import Line, LinePanel, line_plot
from dynolab.report.style import with_interval
from dynolab.statistics import mean_interval
from experiments.chapters.page import BANDS, Chapter, Facts, lines_by, path_line, read_frame, select
from experiments.chapters.supervision.claims import (
    LABELS,
    SCORES,
    assess_supervision,
    best_adaptation,
    supervision_table,
    with_delay,
)

SPEED = "learning-speed"
_NOISE = "share of wrong labels"
_CONTRASTS = {
    "clean-noisy": "Digits, some labels wrong",
    "coherent-contradictory": "Pairs of near-equal inputs",
}


def supervision(inputs: Mapping[str, Path], facts: Facts) -> Chapter:
    """Make the chapter of input `learning-speed`, and of every other input as a noise level."""
    levels = [folder for name, folder in inputs.items() if name != SPEED]
    arms, detections = (
        read_frame(levels, f"{name}.jsonl") for name in ("supervision", "detections")
    )
    speeds, adaptations = (
        read_frame([inputs[SPEED]], f"{name}.jsonl") for name in ("speeds", "adaptations")
    )
    content: list[Figure | Section] = [_accuracies(arms), _beliefs(arms)]
    if len(detections):
        panel = LinePanel(
            "Wrong labels against right ones",
            _NOISE,
            "AUC",
            lines_by(detections, "score", "noise", "auc"),
        )
        content.append(
            Figure(
                "detection",
                "Can the learning path find the wrong labels?",
                "AUC of every score by noise.",
                f"{BANDS} AUC: probability that a wrong label scores higher than a right one; 0.5 "
                "is chance. All scores come from the one training on the given labels.",
                line_plot([panel], named=SCORES),
            )
        )
    if len(speeds):
        content += [_speeds(speeds), _sources(speeds)]
    if len(adaptations):
        content.append(_adaptations(adaptations))
    return Chapter(
        title="What to teach when labels are wrong",
        lead="One network, taught in several ways at several shares of wrong labels; a wrong label "
        "is one of the other classes. Then, with the effect of every step computed: which kind of "
        "examples training raises faster; and which factorisation of a joint distribution adapts "
        "faster after an intervention on the cause.",
        verdicts=assess_supervision(arms, detections, speeds, adaptations),
        content=content,
        source="Claims follow Ren, Guo & Sutherland, Better Supervisory Signals (ICLR 2022), and "
        "Ren, Learning Dynamics of Deep Learning (arXiv 2509.19554), on adaptation Bengio et al., "
        "A Meta-Transfer Objective (arXiv 1901.10912). Intervals are 95% t-intervals over seeds, "
        "paired by seed.",
    )


def _accuracies(rows: pd.DataFrame) -> Figure:
    levels = sorted(rows.noise.unique())
    gains = {level: supervision_table(rows, level).against("one_hot") for level in levels}
    panels = [
        LinePanel(
            "Accuracy on clean test images",
            _NOISE,
            "accuracy",
            lines_by(rows, "arm", "noise", "accuracy"),
            tickformat=".0%",
        ),
        LinePanel(
            "Gain over one-hot, paired by seed",
            _NOISE,
            "Δ accuracy",
            [
                Line(arm, levels, [gains[at].mean(arm, "accuracy") for at in levels])
                for arm in LABELS
                if arm != "one_hot"
            ],
            tickformat="+.0%",
            zero=True,
        ),
    ]
    return Figure(
        "accuracy",
        "What is the best teacher of noisy labels?",
        "Accuracy by the share of wrong labels.",
        f"{BANDS} Networks of a seed share initial weights, wrong labels and batches.",
        line_plot(panels, named=LABELS, height=440),
    )


def _beliefs(rows: pd.DataFrame) -> Figure:
    taught = rows[~rows.arm.isin(["early_stopping", "one_hot_twice"])]
    panels = [
        LinePanel(
            "Error of the targets",
            _NOISE,
            "E‖q − e_true‖₂",
            lines_by(taught, "arm", "noise", "target_error"),
            zero=True,
        ),
        LinePanel(
            "Wrong labels that are learned",
            _NOISE,
            "share of them",
            lines_by(rows, "arm", "noise", "believed_wrong"),
            tickformat=".0%",
            zero=True,
        ),
    ]
    return Figure(
        "belief",
        "Which networks repeat the wrong labels?",
        "Distance of the targets from the true labels, and the wrong labels that are predicted.",
        f"{BANDS} Left: distance of the targets to the true one-hot labels, which no network sees. "
        "Right: of the training examples with a wrong label, the share for which the network "
        "predicts that label.",
        line_plot(panels, named=LABELS, height=420),
    )


def _speeds(speeds: pd.DataFrame) -> Figure:
    panels = []
    for contrast, title in _CONTRASTS.items():
        lines = []
        for kind, of_group in select(speeds, contrast=contrast).groupby("kind"):
            for name in ("influence", "measured"):
                line = path_line(kind, of_group.steps.iloc[0], np.array(of_group[name].to_list()))
                lines.append(Line(kind, line.x, line.intervals, dotted=name == "measured"))
        if lines:
            panels.append(LinePanel(title, "step", "accumulated influence, nats", lines, zero=True))
    return Figure(
        "speed",
        "What is learned faster?",
        "Accumulated influence on the examples of a kind, and the measured change (dotted).",
        "The sum of all training examples' forces on an example's own label, to first order, in "
        f"full-batch gradient descent. {BANDS}",
        line_plot(panels, height=420),
    )


def _sources(speeds: pd.DataFrame) -> Section:
    """Where every kind's influence comes from, at the end of training."""
    names = ("own", "from_alike", "from_others", "influence", "measured", "alone")
    rows = []
    for contrast, title in _CONTRASTS.items():
        for kind, of_group in select(speeds, contrast=contrast).groupby("kind"):
            ends = [np.array(of_group[name].to_list())[:, -1] for name in names]
            rows.append((title, kind, *(with_interval(mean_interval(end)) for end in ends)))
    head = (
        "itself",
        "others of its kind",
        "the other kind",
        "together",
        "measured",
        "without the other kind",
    )
    return section(
        "sources",
        "Which steps move an example's own label",
        "Below zero they lower it.",
        table(("comparison", "kind", *head), rows, "ssnnnnnn"),
        note="Accumulated first-order influence on log p of the given label after the last step, "
        "what was measured, and what a training without the other kind measures; nats, means over "
        "examples, then over seeds [95% t-interval].",
    )


def _adaptations(adaptations: pd.DataFrame) -> Figure:
    """Divergence from the truth by example, and its mean by learning rate, of both learners."""
    paths = []
    for direction in ("causal", "anti-causal"):
        of_group = best_adaptation(adaptations, direction)
        kl = np.array(of_group.kl.to_list())
        name = f"{direction}, rate {of_group.learning_rate.iloc[0]:g}"
        paths.append(path_line(name, range(kl.shape[1]), kl))
    rates = sorted(adaptations.learning_rate.unique())
    delays = with_delay(adaptations).assign(place=adaptations.learning_rate.map(rates.index))
    panels = [
        LinePanel("At the best rate of each", "examples seen", "KL, nats", paths, zero=True),
        LinePanel(
            "At every rate, mean over the examples",
            "learning rate",
            "KL, nats",
            lines_by(delays, "direction", "place", "delay"),
            zero=True,
            ticks=[f"{rate:g}" for rate in rates],
        ),
    ]
    return Figure(
        "adaptation",
        "Which factorisation adapts faster?",
        "Divergence of both factorisations from the new joint distribution.",
        "A causes B. Both learners know the joint before p(A) is replaced, and then see the same "
        f"examples, one per step of gradient descent. Means over problems. {BANDS}",
        line_plot(panels, height=420),
    )
