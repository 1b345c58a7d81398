"""What is claimed of learning paths, and what a study shows of it.

A claim's quantities are means over seeds with t-intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.chapters.classification.path_study import PathFindings
from dynolab.claims.study import Quantity, Verdict
from dynolab.results.classification import Difficulty, EpochInfluence, PathData
from dynolab.statistics import mean_interval

TITLES: dict[PathData, str] = {
    "toy": "Gaussian toy",
    "images": "images, labels flipped",
    "human": "images, human labels",
}


def assess_paths(found: PathFindings) -> tuple[Verdict, ...]:
    """All claims about the data whose paths were followed."""
    known = dict.fromkeys(one.data for one in found.scores)
    return tuple(verdict for data in known for verdict in _of(data, found))


def _of(data: PathData, found: PathFindings) -> Iterator[Verdict]:
    scores = [one for one in found.scores if one.data == data]
    epochs = [one for one in found.epochs if one.data == data]
    title = TITLES[data]
    yield Verdict(
        f"{data}/zigzag",
        title,
        "The harder an example, the more its path zig-zags",
        "ρ > 0",
        (_quantity("ρ(zig-zag, ‖e_y − p*‖)", 1, [one.rank_correlation for one in scores]),),
    )
    yield Verdict(
        f"{data}/auc",
        title,
        "Zig-zag tells wrong labels from right ones",
        "AUC > 0.5",
        (_quantity("AUC", 1, [one.auc for one in scores], bound=0.5),),
    )
    yield Verdict(
        f"{data}/filter",
        title,
        "The filtered path ends nearer to p* than the last prediction",
        "Δ‖q − p*‖ < 0",
        (
            _quantity(
                "filtered − last", -1, [one.filtered_error - one.last_error for one in scores]
            ),
        ),
    )
    wrong = curves(epochs, "mislabelled")
    if wrong is not None:
        yield Verdict(
            f"{data}/detour",
            title,
            "A mislabelled example first goes to its true class, then to the given label",
            "rise > 0, then fall < 0",
            _detour(wrong["truth"]),
        )
        yield Verdict(
            f"{data}/others",
            title,
            "Within an epoch the others pull a mislabelled example back from its label",
            "Σ < 0",
            (_quantity("others", -1, wrong["others"].sum(1), unit="nats"),),
        )
    easy = curves(epochs, "easy")
    if easy is not None:
        yield Verdict(
            f"{data}/easy_others",
            title,
            "They lift an easy one's label",
            "Σ > 0",
            (_quantity("others", 1, easy["others"].sum(1), unit="nats"),),
        )


def curves(
    rows: Sequence[EpochInfluence], group: Difficulty
) -> dict[str, Float[ndarray, "seeds epochs"]] | None:
    """What epochs did to the examples of a difficulty, seed by seed; None where there are none."""
    own = [row for row in rows if row.group == group]
    seeds, epochs = ({getattr(row, name) for row in own} for name in ("seed", "epoch"))
    if len(own) != len(seeds) * len(epochs) or not own:
        return None
    own.sort(key=lambda row: (row.seed, row.epoch))
    return {
        name: np.array([getattr(row, name) for row in own]).reshape(len(seeds), len(epochs))
        for name in ("own", "others", "label", "truth")
    }


def _detour(truth: Float[ndarray, "seeds epochs"]) -> tuple[Quantity, ...]:
    """Rise to the peak and fall after it; a seed's peak is the epoch where the other seeds have
    theirs, so that noise makes no peak."""
    rise, fall = [], []
    for n, path in enumerate(truth):
        others = np.delete(truth, n, axis=0) if len(truth) > 1 else truth
        peak = int(others.mean(0).argmax())
        rise.append(path[peak] - path[0])
        fall.append(path[-1] - path[peak])
    return _quantity("p_true up to its peak", 1, rise), _quantity("after it", -1, fall)


def _quantity(
    name: str, sign: int, values: Sequence[float] | ndarray, *, bound: float = 0.0, unit: str = ""
) -> Quantity:
    return Quantity(name, 1 if sign > 0 else -1, mean_interval(np.array(values)), bound, unit)
