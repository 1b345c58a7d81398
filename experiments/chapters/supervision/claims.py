"""Claims about supervision under label noise and learning speeds, and their verdicts.

Figures are means over seeds with t-intervals, paired by seed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from dynolab.claims.verdict import Claimed, Verdict, above, below, judged
from dynolab.comparisons.arm_table import ArmTable
from dynolab.statistics import mean_interval
from experiments.chapters.page import select

LABELS = {
    "filter_kd": "Filter-KD",
    "eskd": "ESKD",
    "kd": "KD",
    "label_smoothing": "label smoothing",
    "one_hot": "one-hot",
    "early_stopping": "early stopping",
    "one_hot_twice": "one-hot, twice the rate",
}
"""Labels of arms in sentences and legends."""

SCORES = {
    "filter": "Filter-KD's table",
    "path": "the mean over the path",
    "last": "the last prediction",
    "zigzag": "the zig-zag score",
}
JUDGED_NOISE = 0.4
"""Noise at which arms are compared with each other; the nearest measured level is used."""


def supervision_table(rows: pd.DataFrame, noise: float) -> ArmTable:
    """The arms' figures at one noise level, ordered by seed."""
    of_group = select(rows, noise=noise).sort_values("seed")
    figures = ["accuracy", "nll", "target_error", "believed_wrong"]
    return ArmTable(
        {arm: select(of_group, arm=arm)[figures].astype(float).to_dict("records") for arm in LABELS}
    )


def assess_supervision(
    rows: pd.DataFrame, detections: pd.DataFrame, speeds: pd.DataFrame, adaptations: pd.DataFrame
) -> list[Verdict]:
    """Judges all claims: on Filter-KD, finding wrong labels, learning speeds, and adaptation."""
    noise = min(rows.noise.unique(), key=lambda level: (abs(level - JUDGED_NOISE), level))
    return [
        *judged("supervision", "Filter-KD", _filter_claims(rows, noise)),
        *judged("detection", "wrong labels", _detection_claims(detections, noise)),
        *judged("speed", "learning speed", _speed_claims(speeds)),
        *assess_adaptation(adaptations),
    ]


def _filter_claims(rows: pd.DataFrame, noise: float) -> Iterator[Claimed]:
    levels = [(level, "one_hot") for level in sorted(rows.noise.unique()) if level]
    others = ("label_smoothing", "kd", "eskd", "early_stopping", "one_hot_twice")
    for level, other in (*levels, *((noise, other) for other in others)):
        gain = supervision_table(rows, level).difference("filter_kd", other, "accuracy").times(100)
        yield (
            f"{level:g}/filter_kd_over_{other}",
            f"At {level:.0%} noise it is more accurate than {LABELS[other]}",
            "Δ accuracy > 0",
            above(f"Filter-KD − {LABELS[other]}", gain, unit="points"),
        )
    error = supervision_table(rows, noise).difference("filter_kd", "one_hot", "target_error")
    yield (
        "target_error",
        f"At {noise:.0%} noise its targets are nearer to the truth than the given labels",
        "Δ E‖q − e_true‖ < 0",
        below("Filter-KD − one-hot", error, unit=""),
    )


def _detection_claims(detections: pd.DataFrame, noise: float) -> Iterator[Claimed]:
    of_group = select(detections, noise=noise)
    if of_group.empty:
        return
    auc = of_group.pivot(index="seed", columns="score", values="auc")
    for score in ("filter", "path", "zigzag"):
        yield (
            score,
            f"At {noise:.0%} noise {SCORES[score]} finds them, and better than the last "
            "predictions do",
            "AUC > 0.5, Δ AUC > 0",
            above("AUC", mean_interval(auc[score].to_numpy()), 0.5, unit=""),
            above(
                "AUC − last prediction’s",
                mean_interval((auc[score] - auc["last"]).to_numpy()),
                unit="",
            ),
        )


def _speed_claims(speeds: pd.DataFrame) -> Iterator[Claimed]:
    for contrast, fast, slow, claim in (
        ("clean-noisy", "clean", "noisy", "Clean labels are learned faster than wrong ones"),
        (
            "coherent-contradictory",
            "coherent",
            "contradictory",
            "Pairs that agree are learned faster than pairs that contradict each other",
        ),
    ):
        of_group = select(speeds, contrast=contrast)
        if of_group.empty:
            continue
        speed = of_group.pivot(index="seed", columns="kind", values="speed")
        faster = mean_interval((speed[fast] - speed[slow]).to_numpy())
        yield contrast, claim, "Δ speed > 0", above("Δ mean change", faster)
        if contrast == "clean-noisy":
            noisy = select(of_group, kind=slow)
            # Over all kept steps, as the speed is: at the end a network has learned every label.
            differences = [
                np.mean(both[1:]) - np.mean(alone[1:])
                for both, alone in zip(noisy.measured, noisy.alone, strict=True)
            ]
            yield (
                "clean-noisy/held_back",
                "Clean examples hold wrong labels back: with them these are learned more slowly",
                "Δ of noisy, with − without clean < 0",
                below("with − without", mean_interval(differences)),
            )


def assess_adaptation(adaptations: pd.DataFrame) -> list[Verdict]:
    """Compares both learners, each at its fastest learning rate, paired by seed."""
    if adaptations.empty:
        return []
    causal, other = (
        best_adaptation(adaptations, direction).delay.to_numpy()
        for direction in ("causal", "anti-causal")
    )
    return [
        Verdict.of(
            "adaptation",
            "adaptation",
            "After an intervention on the cause p(A) p(B|A) adapts faster than p(B) p(A|B)",
            "Δ mean KL < 0",
            below("causal − anti-causal", mean_interval(causal - other)),
        )
    ]


def with_delay(adaptations: pd.DataFrame) -> pd.DataFrame:
    """The rows with `delay`: the mean of `kl` from the first example on."""
    return adaptations.assign(delay=[float(np.mean(kl[1:])) for kl in adaptations.kl])


def best_adaptation(adaptations: pd.DataFrame, direction: str) -> pd.DataFrame:
    """A learner's rows at the learning rate where it adapts fastest, ordered by seed."""
    of_group = with_delay(select(adaptations, direction=direction))
    fastest = of_group.groupby("learning_rate").delay.sum().idxmin()
    return select(of_group, learning_rate=fastest).sort_values("seed")
