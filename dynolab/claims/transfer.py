"""What is claimed of task heads, and what was found of it.

Quantities are means over seeds with t-intervals, paired by seed. Where a τ is picked as the best,
it is picked for every seed on the *other* seeds, so that luck picks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.claims.study import Quantity, Verdict
from dynolab.results.transfer import Strategy, TransferRow
from dynolab.statistics import Interval, mean_interval, rank_correlation

IN = "in distribution"
Values = Float[ndarray, "taus seeds"]

STRATEGY_LABELS: dict[str, str] = {
    "linear": "linear head",
    "smoothed": "probed with smoothed labels",
    "two_layer": "two-layer head",
    "reinitialised": "last feature layer drawn anew",
}


@dataclass(frozen=True)
class Sweep:
    """The rows of one task and strategy, by τ and seed."""

    task: str
    strategy: Strategy
    rows: tuple[TransferRow, ...]

    @property
    def taus(self) -> list[int]:
        """Rising."""
        return sorted({row.tau for row in self.rows})

    @property
    def seeds(self) -> list[int]:
        """Rising."""
        return sorted({row.seed for row in self.rows})

    @property
    def tests(self) -> list[str]:
        """The test sets by name: in distribution, and elsewhere."""
        return [IN, *self.rows[0].elsewhere]

    def values(self, name: str) -> Values:
        """A figure of the rows by τ and seed."""
        return self._by(lambda row: float(getattr(row, name)))

    def accuracy(self, test: str) -> Values:
        """On one of the tests; `elsewhere` is the mean over all that are changed."""
        if test == IN:
            return self.values("accuracy")
        if test == "elsewhere":
            return self._by(lambda row: float(np.mean(list(row.elsewhere.values()))))
        return self._by(lambda row: row.elsewhere[test])

    def _by(self, read: Callable[[TransferRow], float]) -> Values:
        found = {(row.tau, row.seed): read(row) for row in self.rows}
        return np.array([[found[tau, seed] for seed in self.seeds] for tau in self.taus])


def sweeps(rows: Sequence[TransferRow]) -> list[Sweep]:
    """By task, then by strategy, in the rows' order."""
    keys = dict.fromkeys((row.task, row.strategy) for row in rows)
    return [
        Sweep(task, strategy, tuple(r for r in rows if (r.task, r.strategy) == (task, strategy)))
        for task, strategy in keys
    ]


def picked_on_others(values: Values, among: Sequence[int]) -> Float[ndarray, " seeds"]:
    """Every seed's value at the τ that is best on average over the other seeds.

    **Arguments:** `among`: rows of `values` to pick from. With one seed there are no others:
    not-a-number.
    """
    if values.shape[1] < 2:
        return np.full(values.shape[1], np.nan)
    choices = values[list(among)]
    others = (choices.sum(1, keepdims=True) - choices) / (values.shape[1] - 1)
    best: Float[ndarray, " seeds"] = choices[others.argmax(0), np.arange(values.shape[1])]
    return best


def assess_transfer(rows: Sequence[TransferRow]) -> tuple[Verdict, ...]:
    """All claims, task by task."""
    found: list[Verdict] = []
    for task in dict.fromkeys(row.task for row in rows):
        own = {one.strategy: one for one in sweeps(rows) if one.task == task}
        linear = own["linear"]
        found += _of_energy(task, linear)
        found += _of_best(task, linear)
        if "smoothed" in own:
            found += _of_smoothed(task, linear, own["smoothed"])
    return tuple(found)


def _of_energy(task: str, linear: Sweep) -> Iterator[Verdict]:
    energy = linear.values("energy")
    yield Verdict(
        f"{task}/energy",
        task,
        "Longer probing leaves less energy",
        "Δ E‖e − p‖ < 0",
        (Quantity("last τ − first τ", -1, mean_interval(energy[-1] - energy[0]), unit=""),),
    )
    for name, sign, said in (
        ("distance", 1, "farther"),
        ("cosine", -1, "to a smaller cosine with where they were"),
    ):
        values = linear.values(name)
        yield Verdict(
            f"{task}/{name}",
            task,
            f"More energy moves features {said}",
            f"rank correlation over τ {'>' if sign > 0 else '<'} 0",
            (
                Quantity(
                    f"Spearman, energy and {name}",
                    1 if sign > 0 else -1,
                    mean_interval(rank_correlation(energy.T, values.T)),
                    unit="",
                ),
            ),
        )
    for name, said in (
        ("dot_product", "The dot product with where they were"),
        ("norm", "The norm of features"),
    ):
        values = linear.values(name)
        inner = picked_on_others(values, range(1, len(values) - 1)) if len(values) > 2 else None
        yield Verdict(
            f"{task}/{name}",
            task,
            f"{said} rises with energy, then falls",
            "an inner τ above both ends",
            ()
            if inner is None
            else (
                Quantity("inner − least energy", 1, mean_interval(inner - values[-1]), unit=""),
                Quantity("inner − most energy", 1, mean_interval(inner - values[0]), unit=""),
            ),
        )
    followed = linear.values("followed")
    inner = picked_on_others(followed, range(1, len(followed)))
    yield Verdict(
        f"{task}/mismatch",
        task,
        "Energy–direction mismatch: an unprobed head has the most energy and features follow its "
        "push less than a probed head’s",
        "Δ energy > 0, Δ followed < 0",
        (
            Quantity("energy, first τ − last τ", 1, mean_interval(energy[0] - energy[-1]), unit=""),
            Quantity(
                "followed, first τ − best later τ", -1, mean_interval(followed[0] - inner), unit=""
            ),
        ),
    )


def _of_best(task: str, linear: Sweep) -> Iterator[Verdict]:
    if len(linear.taus) < 3:
        return
    for test, said in ((IN, "in distribution"), ("elsewhere", "out of distribution")):
        values = linear.accuracy(test)
        inner = picked_on_others(values, range(1, len(values) - 1))
        yield Verdict(
            f"{task}/best/{'in' if test == IN else 'out'}",
            task,
            f"Probing stopped earlier is best {said}: better than none and than to the end",
            "an inner τ above both ends",
            (
                Quantity(
                    "inner τ − no probing" if linear.taus[0] == 0 else "inner τ − first τ",
                    1,
                    _points(mean_interval(inner - values[0])),
                    unit="points",
                ),
                Quantity(
                    "inner τ − last τ", 1, _points(mean_interval(inner - values[-1])), unit="points"
                ),
            ),
        )


def _of_smoothed(task: str, linear: Sweep, smoothed: Sweep) -> Iterator[Verdict]:
    kept = smoothed.values("energy")[-1] - linear.values("energy")[-1]
    yield Verdict(
        f"{task}/smoothed/energy",
        task,
        "Probing with smoothed labels keeps energy at the last τ",
        "Δ energy > 0",
        (Quantity("smoothed − hard", 1, mean_interval(kept), unit=""),),
    )
    for test, said in ((IN, "in distribution"), ("elsewhere", "out of distribution")):
        gain = smoothed.accuracy(test)[-1] - linear.accuracy(test)[-1]
        yield Verdict(
            f"{task}/smoothed/{'in' if test == IN else 'out'}",
            task,
            f"After the longest probing smoothed labels end more accurate {said}",
            "Δ accuracy > 0",
            (Quantity("smoothed − hard", 1, _points(mean_interval(gain)), unit="points"),),
        )


def _points(share: Interval) -> Interval:
    return Interval(100 * share.mean, 100 * share.low, 100 * share.high, share.n)
