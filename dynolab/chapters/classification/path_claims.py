"""Claims about learning paths of classifiers, and their verdicts.

Figures are means over seeds with t-intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.chapters.classification.path_study import PathFindings
from dynolab.chapters.classification.rows import Difficulty, EpochInfluence, PathData, PathScores
from dynolab.claims.verdict import Measurement, Verdict, above, below
from dynolab.statistics import Interval, mean_interval

TITLES: dict[PathData, str] = {
    "toy": "Gaussian toy",
    "images": "images, labels flipped",
    "human": "images, human labels",
}


def assess_paths(findings: PathFindings) -> tuple[Verdict, ...]:
    """Judges all claims on every data set whose paths were followed."""
    data_sets = dict.fromkeys(row.data for row in findings.scores)
    return tuple(verdict for data in data_sets for verdict in _verdicts(data, findings))


def _verdicts(data: PathData, findings: PathFindings) -> Iterator[Verdict]:
    scores = [row for row in findings.scores if row.data == data]
    epochs = [row for row in findings.epochs if row.data == data]

    def over_seeds(value: Callable[[PathScores], float]) -> Interval:
        return mean_interval(np.array([value(row) for row in scores]))

    def verdict(name: str, claim: str, expected: str, *figures: Measurement) -> Verdict:
        return Verdict.of(f"{data}/{name}", TITLES[data], claim, expected, *figures)

    yield verdict(
        "zigzag",
        "The harder an example, the more its path zig-zags",
        "ρ > 0",
        above("ρ(zig-zag, ‖e_y − p*‖)", over_seeds(lambda row: row.rank_correlation), unit=""),
    )
    yield verdict(
        "auc",
        "Zig-zag tells wrong labels from right ones",
        "AUC > 0.5",
        above("AUC", over_seeds(lambda row: row.auc), 0.5, unit=""),
    )
    nearer = over_seeds(lambda row: row.filtered_error - row.last_error)
    yield verdict(
        "filter",
        "The filtered path ends nearer to p* than the last prediction",
        "Δ‖q − p*‖ < 0",
        below("filtered − last", nearer, unit=""),
    )
    wrong = curves(epochs, "mislabelled")
    if wrong is not None:
        yield verdict(
            "detour",
            "A mislabelled example first goes to its true class, then to the given label",
            "rise > 0, then fall < 0",
            *_detour(wrong["truth"]),
        )
        yield verdict(
            "others",
            "Within an epoch the others pull a mislabelled example back from its label",
            "Σ < 0",
            below("others", mean_interval(wrong["others"].sum(1))),
        )
    easy = curves(epochs, "easy")
    if easy is not None:
        yield verdict(
            "easy_others",
            "They lift an easy one's label",
            "Σ > 0",
            above("others", mean_interval(easy["others"].sum(1))),
        )


def curves(
    rows: Sequence[EpochInfluence], group: Difficulty
) -> dict[str, Float[ndarray, "seeds epochs"]] | None:
    """Effects of each epoch on the examples of a difficulty, by seed; None if there are none."""
    own = [row for row in rows if row.group == group]
    seeds, epochs = ({getattr(row, name) for row in own} for name in ("seed", "epoch"))
    if len(own) != len(seeds) * len(epochs) or not own:
        return None
    own.sort(key=lambda row: (row.seed, row.epoch))
    return {
        name: np.array([getattr(row, name) for row in own]).reshape(len(seeds), len(epochs))
        for name in ("own", "others", "label", "truth")
    }


def _detour(truth: Float[ndarray, "seeds epochs"]) -> tuple[Measurement, ...]:
    """Rise to the peak and fall after it.

    A seed's peak is the epoch at which the other seeds peak, so that noise creates no peak.
    """
    rise, fall = [], []
    for n, path in enumerate(truth):
        others = np.delete(truth, n, axis=0) if len(truth) > 1 else truth
        peak = int(others.mean(0).argmax())
        rise.append(path[peak] - path[0])
        fall.append(path[-1] - path[peak])
    return (
        above("p_true up to its peak", mean_interval(np.array(rise)), unit=""),
        below("after it", mean_interval(np.array(fall)), unit=""),
    )
