"""What is claimed of supervision under label noise and of learning speeds, and what was found.

Quantities are means over seeds with t-intervals, paired by seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np

from dynolab.claims.study import Quantity, Verdict
from dynolab.comparisons.group_arms import ArmTable
from dynolab.results.supervision import (
    AdaptationRow,
    Arm,
    Contrast,
    DetectionRow,
    DetectionScore,
    Direction,
    SpeedRow,
    SupervisionRow,
)
from dynolab.statistics import Interval, mean_interval

ARMS: tuple[Arm, ...] = get_args(Arm)
JUDGED_NOISE = 0.4
"""At what noise the arms are compared with each other; the nearest that was measured."""


def supervision_table(rows: Sequence[SupervisionRow], noise: float) -> ArmTable:
    """The arms' figures at one noise level, seeds in one order."""
    figures = ("accuracy", "nll", "target_error", "believed_wrong")
    found: dict[str, list[dict[str, float]]] = {}
    for arm in ARMS:
        own = sorted((r for r in rows if r.arm == arm and r.noise == noise), key=lambda r: r.seed)
        found[arm] = [
            {name: value for name in figures if (value := getattr(row, name)) is not None}
            for row in own
        ]
    return ArmTable(found)


def levels_of(rows: Sequence[SupervisionRow]) -> list[float]:
    """The noise levels, rising."""
    return sorted({row.noise for row in rows})


def judged_noise(rows: Sequence[SupervisionRow]) -> float:
    """The measured level nearest to `JUDGED_NOISE`."""
    return min(levels_of(rows), key=lambda level: (abs(level - JUDGED_NOISE), level))


def detection(rows: Sequence[DetectionRow], score: DetectionScore, noise: float) -> np.ndarray:
    """AUC of a score, seeds in one order."""
    own = [row for row in rows if row.score == score and row.noise == noise]
    return np.array([row.auc for row in sorted(own, key=lambda row: row.seed)], dtype=float)


def assess_supervision(
    rows: Sequence[SupervisionRow],
    detections: Sequence[DetectionRow],
    speeds: Sequence[SpeedRow],
    adaptations: Sequence[AdaptationRow],
) -> tuple[Verdict, ...]:
    """All claims: of Filter-KD, of finding wrong labels, of learning speeds, of adaptation."""
    return (
        *_of_filter(rows),
        *_of_detection(rows, detections),
        *_of_speeds(speeds),
        *assess_adaptation(adaptations),
    )


def _of_filter(rows: Sequence[SupervisionRow]) -> Iterator[Verdict]:
    for noise in levels_of(rows):
        if noise:
            yield _higher("filter_kd", "one_hot", noise, supervision_table(rows, noise))
    noise = judged_noise(rows)
    table = supervision_table(rows, noise)
    for other in ("label_smoothing", "kd", "eskd", "early_stopping", "one_hot_twice"):
        yield _higher("filter_kd", other, noise, table)
    yield Verdict(
        "supervision/target_error",
        "Filter-KD",
        f"At {noise:.0%} noise its targets are nearer to the truth than the given labels",
        "Δ E‖q − e_true‖ < 0",
        (
            Quantity(
                "Filter-KD − one-hot",
                -1,
                table.difference("filter_kd", "one_hot", "target_error"),
                unit="",
            ),
        ),
    )


def _higher(arm: str, other: str, noise: float, table: ArmTable) -> Verdict:
    gain = _points(table.difference(arm, other, "accuracy"))
    return Verdict(
        f"supervision/{noise:g}/{arm}_over_{other}",
        "Filter-KD",
        f"At {noise:.0%} noise it is more accurate than {LABELS[other]}",
        "Δ accuracy > 0",
        (Quantity(f"{LABELS[arm]} − {LABELS[other]}", 1, gain, unit="points"),),
    )


def _of_detection(
    rows: Sequence[SupervisionRow], detections: Sequence[DetectionRow]
) -> Iterator[Verdict]:
    noise = judged_noise(rows)
    last = detection(detections, "last", noise)
    for score in ("filter", "path", "zigzag"):
        own = detection(detections, score, noise)
        if own.size:
            yield Verdict(
                f"detection/{score}",
                "wrong labels",
                f"At {noise:.0%} noise {SCORES[score]} finds them, and better than the last "
                "predictions do",
                "AUC > 0.5, Δ AUC > 0",
                (
                    Quantity("AUC", 1, mean_interval(own), 0.5, ""),
                    Quantity("AUC − last prediction’s", 1, mean_interval(own - last), unit=""),
                ),
            )


def _of_speeds(speeds: Sequence[SpeedRow]) -> Iterator[Verdict]:
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
        yield _faster(f"speed/{contrast}", claim, first - second)
        if contrast == "clean-noisy":
            others = np.array(
                [
                    row.from_others[-1]
                    for row in speeds
                    if row.contrast == contrast and row.kind == slow
                ]
            )
            yield Verdict(
                "speed/clean-noisy/held_back",
                "learning speed",
                "Clean examples hold wrong labels back",
                "influence of clean on noisy < 0",
                (Quantity("accumulated influence", -1, mean_interval(others), unit="nats"),),
            )


def _faster(id_: str, claim: str, difference: np.ndarray) -> Verdict:
    gain = Quantity("Δ mean accumulated influence", 1, mean_interval(difference))
    return Verdict(id_, "learning speed", claim, "Δ speed > 0", (gain,))


def speed_values(speeds: Sequence[SpeedRow], contrast: Contrast, kind: str) -> np.ndarray:
    """The speed of one kind of examples, seeds in one order."""
    own = [row for row in speeds if row.contrast == contrast and row.kind == kind]
    return np.array([row.speed for row in sorted(own, key=lambda row: row.seed)])


def assess_adaptation(adaptations: Sequence[AdaptationRow]) -> Iterator[Verdict]:
    """Each learner at its fastest learning rate, paired by seed."""
    if adaptations:
        causal, other = (best_adaptation(adaptations, way) for way in ("causal", "anti-causal"))
        delays = [np.array([row.delay for row in rows]) for rows in (causal, other)]
        yield Verdict(
            "adaptation",
            "adaptation",
            "After an intervention on the cause p(A) p(B|A) adapts faster than p(B) p(A|B)",
            "Δ mean KL < 0",
            (Quantity("causal − anti-causal", -1, mean_interval(delays[0] - delays[1])),),
        )


def best_adaptation(
    adaptations: Sequence[AdaptationRow], direction: Direction
) -> list[AdaptationRow]:
    """A learner's rows at the learning rate at which it adapts fastest, seeds in one order."""
    rates: dict[float, list[AdaptationRow]] = {}
    for row in adaptations:
        if row.direction == direction:
            rates.setdefault(row.learning_rate, []).append(row)
    fastest = min(rates.values(), key=lambda rows: sum(row.delay for row in rows))
    return sorted(fastest, key=lambda row: row.seed)


def _points(share: Interval) -> Interval:
    return Interval(100 * share.mean, 100 * share.low, 100 * share.high, share.n)


LABELS: dict[str, str] = {
    "filter_kd": "Filter-KD",
    "eskd": "ESKD",
    "kd": "KD",
    "label_smoothing": "label smoothing",
    "one_hot": "one-hot",
    "early_stopping": "early stopping",
    "one_hot_twice": "one-hot, twice the rate",
}
"""What arms are called in sentences and legends."""

SCORES: dict[str, str] = {
    "filter": "Filter-KD's table",
    "path": "the mean over the path",
    "last": "the last prediction",
    "zigzag": "the zig-zag score",
}
