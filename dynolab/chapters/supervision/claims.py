"""Claims about supervision under label noise and learning speeds, and their verdicts.

Figures are means over seeds with t-intervals, paired by seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np

from dynolab.chapters.supervision.rows import (
    AdaptationRow,
    Arm,
    Contrast,
    DetectionRow,
    DetectionScore,
    Direction,
    SpeedRow,
    SupervisionRow,
)
from dynolab.claims.verdict import Verdict, above, below
from dynolab.comparisons.arm_table import ArmTable
from dynolab.statistics import mean_interval

ARMS: tuple[Arm, ...] = get_args(Arm)
JUDGED_NOISE = 0.4
"""Noise at which arms are compared with each other; the nearest measured level is used."""


def supervision_table(rows: Sequence[SupervisionRow], noise: float) -> ArmTable:
    """The arms' figures at one noise level, ordered by seed."""
    figures = {"accuracy", "nll", "target_error", "believed_wrong"}
    in_order = sorted((row for row in rows if row.noise == noise), key=lambda row: row.seed)
    return ArmTable(
        {
            arm: [
                row.model_dump(include=figures, exclude_none=True)
                for row in in_order
                if row.arm == arm
            ]
            for arm in ARMS
        }
    )


def levels_of(rows: Sequence[SupervisionRow]) -> list[float]:
    """The measured noise levels, ascending."""
    return sorted({row.noise for row in rows})


def judged_noise(rows: Sequence[SupervisionRow]) -> float:
    """The measured level nearest to `JUDGED_NOISE`."""
    return min(levels_of(rows), key=lambda level: (abs(level - JUDGED_NOISE), level))


def detection(rows: Sequence[DetectionRow], score: DetectionScore, noise: float) -> np.ndarray:
    """AUC of a score, ordered by seed."""
    own = [row for row in rows if row.score == score and row.noise == noise]
    return np.array([row.auc for row in sorted(own, key=lambda row: row.seed)], dtype=float)


def assess_supervision(
    rows: Sequence[SupervisionRow],
    detections: Sequence[DetectionRow],
    speeds: Sequence[SpeedRow],
    adaptations: Sequence[AdaptationRow],
) -> tuple[Verdict, ...]:
    """Judges all claims: on Filter-KD, finding wrong labels, learning speeds, and adaptation."""
    return (
        *_filter_verdicts(rows),
        *_detection_verdicts(rows, detections),
        *_speed_verdicts(speeds),
        *assess_adaptation(adaptations),
    )


def _filter_verdicts(rows: Sequence[SupervisionRow]) -> Iterator[Verdict]:
    for noise in levels_of(rows):
        if noise:
            yield _accuracy_verdict("filter_kd", "one_hot", noise, supervision_table(rows, noise))
    noise = judged_noise(rows)
    table = supervision_table(rows, noise)
    for other in ("label_smoothing", "kd", "eskd", "early_stopping", "one_hot_twice"):
        yield _accuracy_verdict("filter_kd", other, noise, table)
    error = table.difference("filter_kd", "one_hot", "target_error")
    yield Verdict.of(
        "supervision/target_error",
        "Filter-KD",
        f"At {noise:.0%} noise its targets are nearer to the truth than the given labels",
        "Δ E‖q − e_true‖ < 0",
        below("Filter-KD − one-hot", error, unit=""),
    )


def _accuracy_verdict(arm: str, other: str, noise: float, table: ArmTable) -> Verdict:
    gain = table.difference(arm, other, "accuracy").times(100)
    return Verdict.of(
        f"supervision/{noise:g}/{arm}_over_{other}",
        "Filter-KD",
        f"At {noise:.0%} noise it is more accurate than {LABELS[other]}",
        "Δ accuracy > 0",
        above(f"{LABELS[arm]} − {LABELS[other]}", gain, unit="points"),
    )


def _detection_verdicts(
    rows: Sequence[SupervisionRow], detections: Sequence[DetectionRow]
) -> Iterator[Verdict]:
    noise = judged_noise(rows)
    last = detection(detections, "last", noise)
    for score in ("filter", "path", "zigzag"):
        own = detection(detections, score, noise)
        if own.size:
            yield Verdict.of(
                f"detection/{score}",
                "wrong labels",
                f"At {noise:.0%} noise {SCORES[score]} finds them, and better than the last "
                "predictions do",
                "AUC > 0.5, Δ AUC > 0",
                above("AUC", mean_interval(own), 0.5, unit=""),
                above("AUC − last prediction’s", mean_interval(own - last), unit=""),
            )


def _speed_verdicts(speeds: Sequence[SpeedRow]) -> Iterator[Verdict]:
    claims: tuple[tuple[Contrast, str, str, str], ...] = (
        ("clean-noisy", "clean", "noisy", "Clean labels are learned faster than wrong ones"),
        (
            "coherent-contradictory",
            "coherent",
            "contradictory",
            "Pairs that agree are learned faster than pairs that contradict each other",
        ),
    )
    for contrast, fast, slow, claim in claims:
        first, second = (speed_values(speeds, contrast, kind) for kind in (fast, slow))
        if not first.size:
            continue
        yield Verdict.of(
            f"speed/{contrast}",
            "learning speed",
            claim,
            "Δ speed > 0",
            above("Δ mean accumulated influence", mean_interval(first - second)),
        )
        if contrast == "clean-noisy":
            held_back = [row.from_others[-1] for row in _rows_of_kind(speeds, contrast, slow)]
            yield Verdict.of(
                "speed/clean-noisy/held_back",
                "learning speed",
                "Clean examples hold wrong labels back",
                "influence of clean on noisy < 0",
                below("accumulated influence", mean_interval(np.array(held_back))),
            )


def _rows_of_kind(speeds: Sequence[SpeedRow], contrast: Contrast, kind: str) -> list[SpeedRow]:
    own = [row for row in speeds if row.contrast == contrast and row.kind == kind]
    return sorted(own, key=lambda row: row.seed)


def speed_values(speeds: Sequence[SpeedRow], contrast: Contrast, kind: str) -> np.ndarray:
    """The speed of one kind of examples, ordered by seed."""
    return np.array([row.speed for row in _rows_of_kind(speeds, contrast, kind)])


def assess_adaptation(adaptations: Sequence[AdaptationRow]) -> Iterator[Verdict]:
    """Compares both learners, each at its fastest learning rate, paired by seed."""
    if adaptations:
        causal, other = (
            np.array([row.delay for row in best_adaptation(adaptations, direction)])
            for direction in get_args(Direction)
        )
        yield Verdict.of(
            "adaptation",
            "adaptation",
            "After an intervention on the cause p(A) p(B|A) adapts faster than p(B) p(A|B)",
            "Δ mean KL < 0",
            below("causal − anti-causal", mean_interval(causal - other)),
        )


def best_adaptation(
    adaptations: Sequence[AdaptationRow], direction: Direction
) -> list[AdaptationRow]:
    """A learner's rows at the learning rate where it adapts fastest, ordered by seed."""
    rates: dict[float, list[AdaptationRow]] = {}
    for row in adaptations:
        if row.direction == direction:
            rates.setdefault(row.learning_rate, []).append(row)
    fastest = min(rates.values(), key=lambda rows: sum(row.delay for row in rows))
    return sorted(fastest, key=lambda row: row.seed)


LABELS: dict[str, str] = {
    "filter_kd": "Filter-KD",
    "eskd": "ESKD",
    "kd": "KD",
    "label_smoothing": "label smoothing",
    "one_hot": "one-hot",
    "early_stopping": "early stopping",
    "one_hot_twice": "one-hot, twice the rate",
}
"""Labels of arms in sentences and legends."""

SCORES: dict[str, str] = {
    "filter": "Filter-KD's table",
    "path": "the mean over the path",
    "last": "the last prediction",
    "zigzag": "the zig-zag score",
}
