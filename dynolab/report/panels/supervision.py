"""The figures of supervision under label noise, and of what is learned faster."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynolab.claims.supervision import (
    ARMS,
    LABELS,
    SCORES,
    best_adaptation,
    detection,
    judged_noise,
    levels_of,
    speed_values,
    supervision_table,
)
from dynolab.report.page import Html, section, table
from dynolab.report.panels.interval_lines import Line, LinePanel, line_figure
from dynolab.report.style import Plate, join, points, with_interval
from dynolab.results.supervision import (
    AdaptationRow,
    Contrast,
    DetectionRow,
    Direction,
    SpeedRow,
    SupervisionRow,
)
from dynolab.statistics import mean_interval

_BANDS = "Lines: means over seeds; bands: 95% t-intervals over seeds."


def accuracy_plate(rows: Sequence[SupervisionRow]) -> Plate:
    """Accuracy of every arm by noise, and its gain over one-hot labels."""
    levels, noise = levels_of(rows), judged_noise(rows)
    tables = {level: supervision_table(rows, level) for level in levels}
    panels = [
        LinePanel(
            "Accuracy on clean test images",
            "share of wrong labels",
            "accuracy",
            [
                Line(arm, levels, [tables[level].mean(arm, "accuracy") for level in levels])
                for arm in ARMS
            ],
            tickformat=".0%",
        ),
        LinePanel(
            "Gain over one-hot, paired by seed",
            "share of wrong labels",
            "Δ accuracy",
            [
                Line(
                    arm,
                    levels,
                    [tables[level].difference(arm, "one_hot", "accuracy") for level in levels],
                )
                for arm in ARMS
                if arm != "one_hot"
            ],
            tickformat="+.0%",
            zero=True,
        ),
    ]
    best = max(ARMS, key=lambda arm: tables[noise].mean(arm, "accuracy").mean)
    gain = tables[noise].difference("filter_kd", "one_hot", "accuracy")
    return Plate(
        "accuracy",
        "What is the best teacher of noisy labels?",
        f"At {noise:.0%} wrong labels {LABELS[best]} has the highest mean, "
        f"{tables[noise].mean(best, 'accuracy').mean:.1%}; Filter-KD gains {points(gain)} points "
        "over one-hot labels.",
        f"{_BANDS} Arms of a seed share initial weights, wrong labels and batches. A label that is "
        "wrong is one of the other classes.",
        line_figure(panels, named=LABELS, height=440),
    )


def belief_plate(rows: Sequence[SupervisionRow]) -> Plate:
    """How far from the truth what is taught is, and how much of the noise is learned."""
    levels, noise = levels_of(rows), judged_noise(rows)
    tables = {level: supervision_table(rows, level) for level in levels}
    noisy = [level for level in levels if level]
    taught = [arm for arm in ARMS if arm not in ("early_stopping", "one_hot_twice")]
    panels = [
        LinePanel(
            "Error of what is taught",
            "share of wrong labels",
            "E‖q − e_true‖₂",
            [
                Line(arm, levels, [tables[level].mean(arm, "target_error") for level in levels])
                for arm in taught
            ],
            zero=True,
        ),
        LinePanel(
            "Wrong labels that are believed",
            "share of wrong labels",
            "share of them",
            [
                Line(arm, noisy, [tables[level].mean(arm, "believed_wrong") for level in noisy])
                for arm in ARMS
            ],
            tickformat=".0%",
            zero=True,
        ),
    ]
    shares = [
        f"{LABELS[arm]} {tables[noise].mean(arm, 'believed_wrong').mean:.0%}"
        for arm in ("one_hot", "kd", "filter_kd")
    ]
    return Plate(
        "belief",
        "Who believes the wrong labels?",
        f"At {noise:.0%} noise the trained networks repeat this much of the wrong labels: "
        f"{join(shares)}.",
        f"{_BANDS} Left: distance of the targets to the true one-hot labels, which no arm sees. "
        "Right: of the training examples with a wrong label, the share for which the network "
        "predicts just that label.",
        line_figure(panels, named=LABELS, height=420),
    )


def detection_plate(detections: Sequence[DetectionRow]) -> Plate | None:
    """AUC of wrong labels by noise, for every score."""
    levels = sorted({row.noise for row in detections})
    if not levels:
        return None
    scores = [score for score in SCORES if any(row.score == score for row in detections)]
    found = {
        score: [mean_interval(detection(detections, score, level)) for level in levels]  # type: ignore[arg-type]
        for score in scores
    }
    panel = LinePanel(
        "Wrong labels told from right ones",
        "share of wrong labels",
        "AUC",
        [Line(score, levels, found[score]) for score in scores],
    )
    at = min(range(len(levels)), key=lambda place: abs(levels[place] - 0.4))
    told = [f"{SCORES[score]} {with_interval(found[score][at], sign=False)}" for score in scores]
    return Plate(
        "detection",
        "Can the learning path find the wrong labels?",
        f"At {levels[at]:.0%} noise, AUC: {join(told)}.",
        f"{_BANDS} AUC: how probably a wrong label scores higher than a right one; 0.5 is chance. "
        "All scores come from the one training on the given labels.",
        line_figure([panel], named=SCORES),
    )


_PANELS: dict[Contrast, tuple[str, tuple[str, str]]] = {
    "clean-noisy": ("Digits, some labels wrong", ("clean", "noisy")),
    "coherent-contradictory": ("Pairs of near-equal inputs", ("coherent", "contradictory")),
}


def speed_plate(speeds: Sequence[SpeedRow]) -> Plate | None:
    """Accumulated influence by step for the kinds of every comparison."""
    panels, told = [], []
    for contrast, (title, kinds) in _PANELS.items():
        own = [row for row in speeds if row.contrast == contrast]
        if not own:
            continue
        lines = []
        for kind in kinds:
            rows = [row for row in own if row.kind == kind]
            for name in ("influence", "measured"):
                values = np.array([getattr(row, name) for row in rows])
                lines.append(
                    Line(
                        kind,
                        rows[0].steps,
                        [mean_interval(at) for at in values.T],
                        dotted=name == "measured",
                    )
                )
        panels.append(LinePanel(title, "step", "accumulated influence, nats", lines, zero=True))
        fast, slow = (speed_values(speeds, contrast, kind) for kind in kinds)
        told.append(f"{kinds[0]} leads {kinds[1]} by {with_interval(mean_interval(fast - slow))}")
    if not panels:
        return None
    return Plate(
        "speed",
        "What is learned faster?",
        f"On average over the steps, {join(told)} nats.",
        "Thick: what all training examples' forces add up to on an example's own label, to first "
        "order, means over the examples of a kind and over seeds with 95% bands; dotted: how far "
        "log p really went. Full-batch gradient descent, every step accounted for.",
        line_figure(panels, height=420),
    )


def adaptation_plate(adaptations: Sequence[AdaptationRow]) -> Plate | None:
    """Divergence from the truth by example, and its mean by learning rate, of both learners."""
    if not adaptations:
        return None
    ways: tuple[Direction, ...] = ("causal", "anti-causal")
    best = {way: best_adaptation(adaptations, way) for way in ways}
    paths, delays = [], []
    for way in ways:
        values = np.array([row.kl for row in best[way]])
        paths.append(Line(way, range(values.shape[1]), [mean_interval(at) for at in values.T]))
        rates = sorted({row.learning_rate for row in adaptations})
        by_rate = [
            np.array(
                [r.delay for r in adaptations if (r.direction, r.learning_rate) == (way, rate)]
            )
            for rate in rates
        ]
        delays.append(Line(way, range(len(rates)), [mean_interval(values) for values in by_rate]))
    first, second = (np.array([row.delay for row in best[way]]) for way in ways)
    told = [f"{way} {best[way][0].learning_rate:g}" for way in ways]
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
    return Plate(
        "adaptation",
        "Which factorisation adapts faster?",
        f"Over {len(best['causal'][0].kl) - 1} examples after an intervention on the cause the "
        "causal factorisation’s distance from the truth less the anti-causal one’s is "
        f"{with_interval(mean_interval(first - second))} nats on average.",
        "A causes B. Both learners hold the joint before p(A) is replaced, and then see the same "
        "examples, one a step of gradient descent; KL is from the new joint to theirs. Means over "
        f"problems, then over seeds with 95% bands. Best learning rates: {join(told)}.",
        line_figure(panels, height=420),
    )


def speed_section(speeds: Sequence[SpeedRow]) -> Html | None:
    """Where every kind's influence comes from, at the end of training."""
    rows = []
    for contrast, (title, kinds) in _PANELS.items():
        for kind in kinds:
            own = [row for row in speeds if row.contrast == contrast and row.kind == kind]
            if own:
                ends = [
                    with_interval(mean_interval(np.array([getattr(row, name)[-1] for row in own])))
                    for name in ("own", "from_alike", "from_others", "influence", "measured")
                ]
                rows.append((title, kind, *ends))
    if not rows:
        return None
    head = (
        "comparison",
        "kind",
        "itself",
        "others of its kind",
        "the other kind",
        "together",
        "measured",
    )
    return section(
        "sources",
        "Who teaches whom",
        "Whose steps move an example’s own label, and which way: below zero they lower it.",
        table(head, rows, "ssnnnnn"),
        note="Accumulated first-order influence on log p of the given label after the last step, "
        "nats, means over examples, then over seeds [95% t-interval].",
    )
