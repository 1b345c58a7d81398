"""The page of supervision under label noise, and of learning speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from dynolab.chapters.page import BANDS, Chapter, Facts, lines_by, path_line, read_rows
from dynolab.chapters.supervision.claims import (
    ARMS,
    LABELS,
    SCORES,
    assess_supervision,
    best_adaptation,
    levels_of,
    supervision_table,
)
from dynolab.chapters.supervision.rows import (
    AdaptationRow,
    Contrast,
    DetectionRow,
    Direction,
    SpeedRow,
    SupervisionRow,
)
from dynolab.report.figure import Figure
from dynolab.report.lines import Line, LinePanel, line_plot
from dynolab.report.page import Section, section, table
from dynolab.report.text import with_interval
from dynolab.statistics import mean_interval

SPEED = "learning-speed"
_NOISE = "share of wrong labels"
_CONTRASTS: Mapping[Contrast, str] = {
    "clean-noisy": "Digits, some labels wrong",
    "coherent-contradictory": "Pairs of near-equal inputs",
}


def supervision(inputs: Mapping[str, Path], facts: Facts) -> Chapter:
    """Make the chapter of input `learning-speed`, and of every other input as a noise level."""
    levels = [folder for name, folder in inputs.items() if name != SPEED]
    arms = read_rows(levels, "supervision.jsonl", SupervisionRow)
    detections = read_rows(levels, "detections.jsonl", DetectionRow)
    speeds = read_rows([inputs[SPEED]], "speeds.jsonl", SpeedRow)
    adaptations = read_rows([inputs[SPEED]], "adaptations.jsonl", AdaptationRow)
    content: list[Figure | Section] = [_accuracies(arms), _beliefs(arms)]
    if detections:
        panel = LinePanel(
            "Wrong labels against right ones",
            _NOISE,
            "AUC",
            lines_by(detections, lambda row: row.score, lambda row: row.noise, lambda row: row.auc),
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
    if speeds:
        content += [_speeds(speeds), _sources(speeds)]
    if adaptations:
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


def _by_noise(
    rows: Sequence[SupervisionRow], value: Callable[[SupervisionRow], float | None]
) -> list[Line]:
    return lines_by(rows, lambda row: row.arm, lambda row: row.noise, value)


def _accuracies(rows: Sequence[SupervisionRow]) -> Figure:
    levels = levels_of(rows)
    gains = {level: supervision_table(rows, level).against("one_hot") for level in levels}
    panels = [
        LinePanel(
            "Accuracy on clean test images",
            _NOISE,
            "accuracy",
            _by_noise(rows, lambda row: row.accuracy),
            tickformat=".0%",
        ),
        LinePanel(
            "Gain over one-hot, paired by seed",
            _NOISE,
            "Δ accuracy",
            [
                Line(arm, levels, [gains[at].mean(arm, "accuracy") for at in levels])
                for arm in ARMS
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


def _beliefs(rows: Sequence[SupervisionRow]) -> Figure:
    taught = [row for row in rows if row.arm not in ("early_stopping", "one_hot_twice")]
    panels = [
        LinePanel(
            "Error of the targets",
            _NOISE,
            "E‖q − e_true‖₂",
            _by_noise(taught, lambda row: row.target_error),
            zero=True,
        ),
        LinePanel(
            "Wrong labels that are learned",
            _NOISE,
            "share of them",
            _by_noise(rows, lambda row: row.believed_wrong),
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


def _kinds(speeds: Sequence[SpeedRow], contrast: Contrast) -> dict[str, list[SpeedRow]]:
    """The rows of a contrast by kind of example."""
    own = [row for row in speeds if row.contrast == contrast]
    return {
        kind: [row for row in own if row.kind == kind] for kind in sorted({r.kind for r in own})
    }


def _speeds(speeds: Sequence[SpeedRow]) -> Figure:
    panels = []
    for contrast, title in _CONTRASTS.items():
        lines = []
        for kind, rows in _kinds(speeds, contrast).items():
            for name in ("influence", "measured"):
                line = path_line(kind, rows[0].steps, np.array([getattr(r, name) for r in rows]))
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


def _sources(speeds: Sequence[SpeedRow]) -> Section:
    """Where every kind's influence comes from, at the end of training."""
    names = ("own", "from_alike", "from_others", "influence", "measured")
    rows = [
        (
            title,
            kind,
            *(
                with_interval(mean_interval(np.array([getattr(r, n)[-1] for r in own])))
                for n in names
            ),
        )
        for contrast, title in _CONTRASTS.items()
        for kind, own in _kinds(speeds, contrast).items()
    ]
    head = ("itself", "others of its kind", "the other kind", "together", "measured")
    return section(
        "sources",
        "Which steps move an example's own label",
        "Below zero they lower it.",
        table(("comparison", "kind", *head), rows, "ssnnnnn"),
        note="Accumulated first-order influence on log p of the given label after the last step, "
        "nats, means over examples, then over seeds [95% t-interval].",
    )


def _adaptations(adaptations: Sequence[AdaptationRow]) -> Figure:
    """Divergence from the truth by example, and its mean by learning rate, of both learners."""
    best = {direction: best_adaptation(adaptations, direction) for direction in get_args(Direction)}
    paths = [
        path_line(
            f"{direction}, rate {rows[0].learning_rate:g}",
            range(len(rows[0].kl)),
            np.array([row.kl for row in rows]),
        )
        for direction, rows in best.items()
    ]
    rates = sorted({row.learning_rate for row in adaptations})
    delays = lines_by(
        adaptations,
        lambda row: row.direction,
        lambda row: rates.index(row.learning_rate),
        lambda row: row.delay,
    )
    panels = [
        LinePanel("At the best rate of each", "examples seen", "KL, nats", paths, zero=True),
        LinePanel(
            "At every rate, mean over the examples",
            "learning rate",
            "KL, nats",
            delays,
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
