"""Claims about task heads, and their verdicts.

Figures are means over seeds with t-intervals, paired by seed. The best τ
for a seed is always picked on the *other* seeds, so that luck cannot pick it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.chapters.transfer.rows import Strategy, TransferRow
from dynolab.claims.verdict import Measurement, Sign, Verdict, above, below, on_side
from dynolab.statistics import mean_interval, rank_correlation

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
        """Epochs of probing, ascending."""
        return sorted({row.tau for row in self.rows})

    @property
    def seeds(self) -> list[int]:
        """Seeds, ascending."""
        return sorted({row.seed for row in self.rows})

    @property
    def tests(self) -> list[str]:
        """Names of the test sets: in distribution, then the changed ones."""
        return [IN, *self.rows[0].elsewhere]

    def values(self, name: str) -> Values:
        """A row field by τ and seed."""
        return self._tabulate(lambda row: float(getattr(row, name)))

    def accuracy(self, test: str) -> Values:
        """Accuracy on one test set; `elsewhere` is the mean over all changed ones."""
        if test == IN:
            return self.values("accuracy")
        if test == "elsewhere":
            return self._tabulate(lambda row: float(np.mean(list(row.elsewhere.values()))))
        return self._tabulate(lambda row: row.elsewhere[test])

    def _tabulate(self, read: Callable[[TransferRow], float]) -> Values:
        values = {(row.tau, row.seed): read(row) for row in self.rows}
        return np.array([[values[tau, seed] for seed in self.seeds] for tau in self.taus])


def sweeps(rows: Sequence[TransferRow]) -> list[Sweep]:
    """Groups rows by task and strategy, in order of first occurrence."""
    keys = dict.fromkeys((row.task, row.strategy) for row in rows)
    return [
        Sweep(task, strategy, tuple(r for r in rows if (r.task, r.strategy) == (task, strategy)))
        for task, strategy in keys
    ]


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


def assess_transfer(rows: Sequence[TransferRow]) -> tuple[Verdict, ...]:
    """Judges all claims, task by task."""
    verdicts: list[Verdict] = []
    for task in dict.fromkeys(row.task for row in rows):
        own = {sweep.strategy: sweep for sweep in sweeps(rows) if sweep.task == task}
        linear = own["linear"]
        verdicts += _energy_verdicts(task, linear)
        verdicts += _early_stopping_verdicts(task, linear)
        if "smoothed" in own:
            verdicts += _smoothing_verdicts(task, linear, own["smoothed"])
    return tuple(verdicts)


def _energy_verdicts(task: str, linear: Sweep) -> Iterator[Verdict]:
    def verdict(name: str, claim: str, expected: str, *figures: Measurement) -> Verdict:
        return Verdict.of(f"{task}/{name}", task, claim, expected, *figures)

    energy = linear.values("energy")
    yield verdict(
        "energy",
        "Longer probing leaves less energy",
        "Δ E‖e − p‖ < 0",
        below("last τ − first τ", mean_interval(energy[-1] - energy[0]), unit=""),
    )
    moves: tuple[tuple[str, Sign, str], ...] = (
        ("distance", 1, "farther"),
        ("cosine", -1, "to a smaller cosine with where they were"),
    )
    for name, sign, where in moves:
        spearman = mean_interval(np.asarray(rank_correlation(energy.T, linear.values(name).T)))
        yield verdict(
            name,
            f"More energy moves features {where}",
            f"rank correlation over τ {'>' if sign > 0 else '<'} 0",
            on_side(sign, f"Spearman, energy and {name}", spearman, unit=""),
        )
    for name, what in (
        ("dot_product", "The dot product with where they were"),
        ("norm", "The norm of features"),
    ):
        values = linear.values(name)
        inner = picked_on_others(values, range(1, len(values) - 1)) if len(values) > 2 else None
        figures = (
            []
            if inner is None
            else [
                above("inner − least energy", mean_interval(inner - values[-1]), unit=""),
                above("inner − most energy", mean_interval(inner - values[0]), unit=""),
            ]
        )
        yield verdict(
            name, f"{what} rises with energy, then falls", "an inner τ above both ends", *figures
        )
    followed = linear.values("followed")
    inner = picked_on_others(followed, range(1, len(followed)))
    yield verdict(
        "mismatch",
        "Energy–direction mismatch: an unprobed head has the most energy and features follow its "
        "push less than a probed head’s",
        "Δ energy > 0, Δ followed < 0",
        above("energy, first τ − last τ", mean_interval(energy[0] - energy[-1]), unit=""),
        below("followed, first τ − best later τ", mean_interval(followed[0] - inner), unit=""),
    )


_TESTS = ((IN, "in", "in distribution"), ("elsewhere", "out", "out of distribution"))


def _early_stopping_verdicts(task: str, linear: Sweep) -> Iterator[Verdict]:
    if len(linear.taus) < 3:
        return
    first = "no probing" if linear.taus[0] == 0 else "first τ"
    for test, short, where in _TESTS:
        values = linear.accuracy(test)
        inner = picked_on_others(values, range(1, len(values) - 1))
        yield Verdict.of(
            f"{task}/best/{short}",
            task,
            f"Probing stopped earlier is best {where}: better than none and than to the end",
            "an inner τ above both ends",
            _points(f"inner τ − {first}", inner - values[0]),
            _points("inner τ − last τ", inner - values[-1]),
        )


def _smoothing_verdicts(task: str, linear: Sweep, smoothed: Sweep) -> Iterator[Verdict]:
    kept = smoothed.values("energy")[-1] - linear.values("energy")[-1]
    yield Verdict.of(
        f"{task}/smoothed/energy",
        task,
        "Probing with smoothed labels keeps energy at the last τ",
        "Δ energy > 0",
        above("smoothed − hard", mean_interval(kept), unit=""),
    )
    for test, short, where in _TESTS:
        yield Verdict.of(
            f"{task}/smoothed/{short}",
            task,
            f"After the longest probing smoothed labels end more accurate {where}",
            "Δ accuracy > 0",
            _points("smoothed − hard", smoothed.accuracy(test)[-1] - linear.accuracy(test)[-1]),
        )


def _points(name: str, gain: Float[ndarray, " seeds"]) -> Measurement:
    """A gain in accuracy in percentage points, expected above zero."""
    return above(name, mean_interval(gain).times(100), unit="points")
