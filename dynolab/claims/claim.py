"""Claims about learning paths of trainings, and how each is measured.

A claim's figures are means over training prompts and, with several seeds, over seeds. Intervals are
over prompts, or over seeds, or over both where all seeds train on the same pairs. Two trainings are
compared pair by pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.claims.verdict import Sign, Verdict, on_side
from dynolab.probes.paths import LearningPaths, change, peak_change
from dynolab.results.study import ARGMAX
from dynolab.statistics import Interval, mean_interval, over_seeds_and_pairs

Values = Float[ndarray, "pairs"]


class Part(NamedTuple):
    """A figure's name, its expected sign, and its value for every pair."""

    name: str
    sign: Sign
    values: Values


Trainings = Mapping[str, LearningPaths]
"""Paths of one seed's probed trainings on training prompts, by training."""


@dataclass(frozen=True)
class Measure:
    """How a claim is measured on learning paths: by `parts`, from the answers of `kinds`."""

    expected: str
    kinds: tuple[str, ...]
    parts: Callable[[LearningPaths], tuple[Part, ...]]


@dataclass(frozen=True)
class Claim:
    """A claim about a training, or about its difference from the training `against`.

    With `against`, "rises" means ends higher than under the other, and "falls" ends lower. `papers`
    is what the papers measured.
    """

    training: str
    name: str
    sentence: str
    measure: Measure
    papers: str = ""
    against: str | None = None

    @property
    def id(self) -> str:
        """`<training>/<name>`."""
        return f"{self.training}/{self.name}"

    @property
    def expected(self) -> str:
        """The expected values of its figures, with those that the papers measured."""
        expected = self.measure.expected
        if self.against is not None:
            expected = expected.replace("Δ", "difference")
        return f"{expected}; papers: {self.papers}" if self.papers else expected

    def is_measured(self, trainings: Trainings) -> bool:
        """Whether the trainings and kinds of answers that it needs are available."""
        for name in (self.training, self.against):
            if name is None:
                continue
            if name not in trainings or not trainings[name].logp.keys() >= {*self.measure.kinds}:
                return False
        return True

    def parts(self, trainings: Trainings) -> tuple[Part, ...]:
        """Figures of one seed."""
        parts = self.measure.parts(trainings[self.training])
        if self.against is None:
            return parts
        differences = []
        others = self.measure.parts(trainings[self.against])
        for part, other in zip(parts, others, strict=True):
            name = f"{self.training} − {self.against}"
            differences.append(Part(name, part.sign, part.values - other.values))
        return tuple(differences)


def judge(claim: Claim, seeds: Sequence[Trainings], *, same_pairs: bool = False) -> Verdict:
    """The verdict; not measured if any seed lacks a training or kind of answer that it needs.

    **Arguments:** `same_pairs`: whether all seeds train on the same pairs.
    """
    figures = []
    if seeds and all(claim.is_measured(trainings) for trainings in seeds):
        parts_by_seed = [claim.parts(trainings) for trainings in seeds]
        for parts in zip(*parts_by_seed, strict=True):
            interval = over_units([part.values for part in parts], same_pairs=same_pairs)
            figures.append(on_side(parts[0].sign, parts[0].name, interval))
    return Verdict.of(claim.id, claim.training, claim.sentence, claim.expected, *figures)


def over_units(seeds: Sequence[Values], *, same_pairs: bool = False) -> Interval:
    """Mean over seeds of each seed's mean over pairs; with one seed, mean over its pairs.

    The interval is over seeds, or over seeds and pairs where all seeds measured the same pairs.
    """
    if len(seeds) == 1:
        return mean_interval(seeds[0])
    if not same_pairs:
        return mean_interval([mean_interval(values).mean for values in seeds])
    measured = [np.flatnonzero(np.isfinite(values)) for values in seeds]
    return over_seeds_and_pairs(
        lambda seed, drawn: seeds[seed][measured[seed][drawn]].mean(-1),
        [places.tolist() for places in measured],
    )


def rises(kind: str) -> Measure:
    """`log π_T(y) − log π_0(y) > 0`."""
    return _changes(kind, 1)


def falls(kind: str) -> Measure:
    """`log π_T(y) − log π_0(y) < 0`."""
    return _changes(kind, -1)


def _changes(kind: str, sign: Sign) -> Measure:
    name = "y*" if kind == ARGMAX else kind

    def parts(paths: LearningPaths) -> tuple[Part, ...]:
        return (Part(f"Δ {name}", sign, change(paths.logp[kind])),)

    return Measure("Δ > 0" if sign > 0 else "Δ < 0", (kind,), parts)


def rises_then_falls(kind: str) -> Measure:
    """Rise to the peak > 0 and fall after it < 0; each half of the pairs sets the other's peak."""

    def parts(paths: LearningPaths) -> tuple[Part, ...]:
        rise, fall = peak_change(paths.logp[kind])
        return Part("up to its peak", 1, rise), Part("after its peak", -1, fall)

    return Measure("rise > 0, then fall < 0", (kind,), parts)


def falls_at_once(kind: str) -> Measure:
    """Falls in the first quarter, and over the whole training."""

    def parts(paths: LearningPaths) -> tuple[Part, ...]:
        return (
            Part("first quarter", -1, early(paths, kind)),
            Part(f"Δ {kind}", -1, change(paths.logp[kind])),
        )

    return Measure("first quarter < 0, Δ < 0", (kind,), parts)


def rises_early_then_lags(kind: str) -> Measure:
    """Rises in the first quarter, and gains less than the chosen answer afterwards."""

    def later(paths: LearningPaths, kind: str) -> Values:
        return change(paths.logp[kind]) - early(paths, kind)

    def parts(paths: LearningPaths) -> tuple[Part, ...]:
        return (
            Part("first quarter", 1, early(paths, kind)),
            Part("rest, less the chosen's", -1, later(paths, kind) - later(paths, "chosen")),
        )

    return Measure("first quarter > 0, rest below the chosen's", (kind, "chosen"), parts)


def early(paths: LearningPaths, kind: str) -> Values:
    """`log π_t(y) − log π_0(y)` at the last probe of the first quarter of training."""
    within = np.flatnonzero(paths.steps <= paths.steps[-1] / 4)
    return paths.logp[kind][max(within[-1], 1)] - paths.logp[kind][0]


def gains_more(kind: str, than: str) -> Measure:
    """`Δ log π(y_kind) − Δ log π(y_than) > 0`, paired."""

    def parts(paths: LearningPaths) -> tuple[Part, ...]:
        more = change(paths.logp[kind]) - change(paths.logp[than])
        return (Part(f"Δ {kind} − Δ {than}", 1, more),)

    return Measure(f"Δ {kind} > Δ {than}", (kind, than), parts)


def falls_more(kind: str, than: str) -> Measure:
    """`Δ log π(y_kind) < 0` and `Δ log π(y_kind) − Δ log π(y_than) < 0`, paired."""

    def parts(paths: LearningPaths) -> tuple[Part, ...]:
        fall, other = change(paths.logp[kind]), change(paths.logp[than])
        return Part(f"Δ {kind}", -1, fall), Part(f"Δ {kind} − Δ {than}", -1, fall - other)

    return Measure(f"Δ < 0, Δ {kind} < Δ {than}", (kind, than), parts)


def gap_changes(sign: Sign) -> Measure:
    """`Δ(log π(y*) − log π(y⁺))` above (1) or below (−1) zero."""

    def parts(paths: LearningPaths) -> tuple[Part, ...]:
        gap = paths.logp[ARGMAX] - paths.logp["chosen"]
        return (Part("Δ (y* − chosen)", sign, change(gap)),)

    return Measure("Δ > 0" if sign > 0 else "Δ < 0", ("chosen", ARGMAX), parts)
