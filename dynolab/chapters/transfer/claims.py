"""Claims about task heads, and their verdicts.

Figures are means over seeds with t-intervals, paired by seed. The best τ
for a seed is always picked on the *other* seeds, so that luck cannot pick it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from dynolab.claims.verdict import Claimed, Measurement, Verdict, above, below, judged
from dynolab.statistics import mean_interval, rank_correlation

IN, ELSEWHERE = "in distribution", "elsewhere"
Values = Float[ndarray, "taus seeds"]


def with_tests(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the accuracy on every test set, and the mean `elsewhere`, as columns."""
    changed = pd.DataFrame(rows.elsewhere.to_list(), index=rows.index)
    means = {IN: rows.accuracy, ELSEWHERE: changed.mean(axis=1)}
    return rows.drop(columns=ELSEWHERE).join(changed).assign(**means)


def by_tau(rows: pd.DataFrame, column: str) -> Values:
    """A column of one task and strategy by τ and seed, both ascending."""
    values: Values = rows.pivot(index="tau", columns="seed", values=column).to_numpy()
    return values


def picked_on_others(values: Values, among: Sequence[int]) -> Float[ndarray, " seeds"]:
    """Each seed's value at the τ that is best on average over the other seeds; NaN for one seed.

    **Arguments:** `among`: indices of the τ to pick from.
    """
    if values.shape[1] < 2:
        return np.full(values.shape[1], np.nan)
    choices = values[list(among)]
    others = (choices.sum(1, keepdims=True) - choices) / (values.shape[1] - 1)
    best: Float[ndarray, " seeds"] = choices[others.argmax(0), np.arange(values.shape[1])]
    return best


def assess_transfer(rows: pd.DataFrame) -> list[Verdict]:
    """Judges all claims, task by task."""
    verdicts = []
    for task, own in rows.groupby("task", sort=False):
        by_strategy = dict(list(with_tests(own).groupby("strategy")))
        claims = [*_energy_claims(by_strategy["linear"]), *_stopping_claims(by_strategy["linear"])]
        if "smoothed" in by_strategy:
            claims += _smoothing_claims(by_strategy["linear"], by_strategy["smoothed"])
        verdicts += judged(task, task, claims)
    return verdicts


def _energy_claims(linear: pd.DataFrame) -> Iterator[Claimed]:
    energy = by_tau(linear, "energy")
    yield (
        "energy",
        "Longer probing leaves less energy",
        "Δ E‖e − p‖ < 0",
        below("last τ − first τ", mean_interval(energy[-1] - energy[0]), unit=""),
    )
    for name, expected, side, where in (
        ("distance", above, ">", "farther"),
        ("cosine", below, "<", "to a smaller cosine with where they were"),
    ):
        spearman = mean_interval(np.asarray(rank_correlation(energy.T, by_tau(linear, name).T)))
        yield (
            name,
            f"More energy moves features {where}",
            f"rank correlation over τ {side} 0",
            expected(f"Spearman, energy and {name}", spearman, unit=""),
        )
    for name, what in (
        ("dot_product", "The dot product with where they were"),
        ("norm", "The norm of features"),
    ):
        values, figures = by_tau(linear, name), []
        if len(values) > 2:
            inner = picked_on_others(values, range(1, len(values) - 1))
            figures = [
                above("inner − least energy", mean_interval(inner - values[-1]), unit=""),
                above("inner − most energy", mean_interval(inner - values[0]), unit=""),
            ]
        yield name, f"{what} rises with energy, then falls", "an inner τ above both ends", *figures
    followed = by_tau(linear, "followed")
    inner = picked_on_others(followed, range(1, len(followed)))
    yield (
        "mismatch",
        "Energy–direction mismatch: an unprobed head has the most energy and features follow its "
        "push less than a probed head’s",
        "Δ energy > 0, Δ followed < 0",
        above("energy, first τ − last τ", mean_interval(energy[0] - energy[-1]), unit=""),
        below("followed, first τ − best later τ", mean_interval(followed[0] - inner), unit=""),
    )


_TESTS = ((IN, "in", "in distribution"), (ELSEWHERE, "out", "out of distribution"))


def _stopping_claims(linear: pd.DataFrame) -> Iterator[Claimed]:
    first = "no probing" if linear.tau.min() == 0 else "first τ"
    for test, short, where in _TESTS:
        values = by_tau(linear, test)
        if len(values) > 2:
            inner = picked_on_others(values, range(1, len(values) - 1))
            yield (
                f"best/{short}",
                f"Probing stopped earlier is best {where}: better than none and than to the end",
                "an inner τ above both ends",
                _points(f"inner τ − {first}", inner - values[0]),
                _points("inner τ − last τ", inner - values[-1]),
            )


def _smoothing_claims(linear: pd.DataFrame, smoothed: pd.DataFrame) -> Iterator[Claimed]:
    def kept(column: str) -> Float[ndarray, " seeds"]:
        last: ndarray = by_tau(smoothed, column)[-1] - by_tau(linear, column)[-1]
        return last

    yield (
        "smoothed/energy",
        "Probing with smoothed labels keeps energy at the last τ",
        "Δ energy > 0",
        above("smoothed − hard", mean_interval(kept("energy")), unit=""),
    )
    for test, short, where in _TESTS:
        yield (
            f"smoothed/{short}",
            f"After the longest probing smoothed labels end more accurate {where}",
            "Δ accuracy > 0",
            _points("smoothed − hard", kept(test)),
        )


def _points(name: str, gain: Float[ndarray, " seeds"]) -> Measurement:
    """A gain in accuracy in percentage points, expected above zero."""
    return above(name, mean_interval(gain).times(100), unit="points")
