"""Which of the phenomena of Ren & Sutherland (arXiv 2407.10490, §4) a study shows.

Every claim is one or two signed quantities, each a mean over training prompts with a 95% interval
paired over pairs. A claim appears if every interval lies on the expected side of its bound, does
not if one lies wholly on the other side, and is unclear otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.probes.paths import LearningPaths, change, peak_change
from dynolab.results.study import ARGMAX, ForceRow
from dynolab.statistics import Interval, mean_interval, share_interval, unexplained_share

Outcome = Literal["appears", "does not", "unclear", "not measured"]
UNEXPLAINED_SHARE = 0.1


@dataclass(frozen=True)
class Quantity:
    """One measured number of a claim, expected above (`sign` = 1) or below (−1) its bound."""

    name: str
    sign: Literal[1, -1]
    interval: Interval
    bound: float = 0.0
    unit: str = "nats"

    @property
    def outcome(self) -> Outcome:
        """On which side of the bound the interval lies."""
        if self.interval.n == 0:
            return "not measured"
        ends = (self.interval.low, self.interval.high)
        worst, best = sorted(self.sign * (end - self.bound) for end in ends)
        if worst > 0:
            return "appears"
        return "does not" if best <= 0 else "unclear"


@dataclass(frozen=True)
class Counted:
    """What is said of every case, tried on random ones: a single violation refutes it."""

    name: str
    violations: int
    cases: int

    @property
    def interval(self) -> Interval:
        """Share of violations with Wilson's interval."""
        return share_interval(self.violations, self.cases)

    @property
    def outcome(self) -> Outcome:
        """Appears where no case violates it."""
        if self.cases == 0:
            return "not measured"
        return "does not" if self.violations else "appears"


@dataclass(frozen=True)
class Verdict:
    """A claim and what was found of it; `stage` is the training or the topic that it is about."""

    id: str
    stage: str
    claim: str
    expected: str
    quantities: tuple[Quantity | Counted, ...]

    @property
    def outcome(self) -> Outcome:
        """Appears only if all its quantities do."""
        found = {quantity.outcome for quantity in self.quantities}
        for outcome in ("not measured", "does not", "unclear"):
            if not found or outcome in found:
                return outcome
        return "appears"


Values = Float[ndarray, "pairs"]
Measure = Callable[[LearningPaths], tuple[tuple[str, Literal[1, -1], Values], ...]]


@dataclass(frozen=True)
class Claim:
    """A claim about learning paths, with the kinds it needs and how it is measured."""

    id: str
    stage: str
    sentence: str
    expected: str
    kinds: tuple[str, ...]
    measure: Measure


def _name(kind: str) -> str:
    return "y*" if kind == ARGMAX else kind


def rises(kind: str) -> Measure:
    """`log π_T(y) − log π_0(y) > 0`."""
    return lambda paths: ((f"Δ {_name(kind)}", 1, change(paths.logp[kind])),)


def falls(kind: str) -> Measure:
    """`log π_T(y) − log π_0(y) < 0`."""
    return lambda paths: ((f"Δ {kind}", -1, change(paths.logp[kind])),)


def rises_then_falls(kind: str) -> Measure:
    """Rise up to the peak > 0 and fall after it < 0, the peak chosen on the other half of pairs."""

    def measure(paths: LearningPaths) -> tuple[tuple[str, Literal[1, -1], Values], ...]:
        rise, fall = peak_change(paths.logp[kind])
        return ("up to its peak", 1, rise), ("after its peak", -1, fall)

    return measure


def gains_more(kind: str, than: str) -> Measure:
    """`Δ log π(y_kind) − Δ log π(y_than) > 0`, paired."""
    return lambda paths: (
        (f"Δ {kind} − Δ {than}", 1, change(paths.logp[kind]) - change(paths.logp[than])),
    )


def falls_more(kind: str, than: str) -> Measure:
    """`Δ log π(y_kind) < 0` and `Δ log π(y_kind) − Δ log π(y_than) < 0`, paired."""

    def measure(paths: LearningPaths) -> tuple[tuple[str, Literal[1, -1], Values], ...]:
        own, other = change(paths.logp[kind]), change(paths.logp[than])
        return (f"Δ {kind}", -1, own), (f"Δ {kind} − Δ {than}", -1, own - other)

    return measure


def gap_changes(sign: Literal[1, -1]) -> Measure:
    """`Δ(log π(y*) − log π(y⁺))` above (1) or below (−1) zero."""

    def measure(paths: LearningPaths) -> tuple[tuple[str, Literal[1, -1], Values], ...]:
        gap = paths.logp[ARGMAX] - paths.logp["chosen"]
        return (("Δ (y* − chosen)", sign, change(gap)),)

    return measure


_BOTH = ("chosen", ARGMAX)
CLAIMS: tuple[Claim, ...] = (
    Claim("sft/chosen", "sft", "The chosen answer rises", "Δ > 0", ("chosen",), rises("chosen")),
    Claim(
        "sft/rejected",
        "sft",
        "The rejected answer rises, then falls back",
        "rise > 0, then fall < 0",
        ("rejected",),
        rises_then_falls("rejected"),
    ),
    Claim(
        "sft/irr_test",
        "sft",
        "Answers to untrained questions (irr_test) rise, then fall back",
        "rise > 0, then fall < 0",
        ("irr_test",),
        rises_then_falls("irr_test"),
    ),
    Claim(
        "sft/hallucination",
        "sft",
        "Answers to other training questions gain more than those to untrained ones",
        "Δ irr_train > Δ irr_test",
        ("irr_train", "irr_test"),
        gains_more("irr_train", "irr_test"),
    ),
    Claim(
        "sft/random_permute",
        "sft",
        "Shuffled words (random_permute) fall",
        "Δ < 0",
        ("random_permute",),
        falls("random_permute"),
    ),
    Claim(
        "sft/gap",
        "sft",
        "The gap from the chosen answer up to y* shrinks",
        "Δ < 0",
        _BOTH,
        gap_changes(-1),
    ),
    Claim(
        "dpo/rejected",
        "dpo",
        "The rejected answer falls steeply: more than the chosen one",
        "Δ < 0, Δ rejected < Δ chosen",
        ("rejected", "chosen"),
        falls_more("rejected", "chosen"),
    ),
    Claim(
        "dpo/chosen",
        "dpo",
        "The chosen answer falls, though it is preferred",
        "Δ < 0",
        ("chosen",),
        falls("chosen"),
    ),
    Claim(
        "dpo/argmax",
        "dpo",
        "y*, what the model already prefers, rises",
        "Δ > 0",
        (ARGMAX,),
        rises(ARGMAX),
    ),
    Claim(
        "dpo/gap",
        "dpo",
        "The gap from the chosen answer up to y* grows: squeezing",
        "Δ > 0",
        _BOTH,
        gap_changes(1),
    ),
)


_OF_BOTH = frozenset({"sft/rejected"})
"""Claims that fail by design where both answers of a pair are trained on."""


def claims_of(objective: str) -> tuple[Claim, ...]:
    """The claims to judge of a training by its objective.

    Those on DPO are judged of every loss on pairs, though the papers make them of DPO alone; those
    on SFT of SFT on both answers too, but for the fall of the rejected ones.
    """
    if objective in PAIR_OBJECTIVES:
        made_of, left_out = "dpo", frozenset[str]()
    elif objective == "sft_extended":
        made_of, left_out = "sft", _OF_BOTH
    else:
        made_of, left_out = objective, frozenset()
    return tuple(
        replace(claim, id=f"{objective}/{claim.id.partition('/')[2]}", stage=objective)
        for claim in CLAIMS
        if claim.stage == made_of and claim.id not in left_out
    )


def assess(
    trainings: Mapping[str, LearningPaths | None], forces: Sequence[ForceRow] = ()
) -> tuple[Verdict, ...]:
    """All claims about a study's trainings, judged on training prompts.

    `trainings`: paths by the objective's name, in the study's order; None where a training was
    not probed.
    """
    return tuple(
        judge(claim, paths) for stage, paths in trainings.items() for claim in claims_of(stage)
    ) + tuple(prediction_explains(stage, forces) for stage in trainings)


def judge(claim: Claim, paths: LearningPaths | None) -> Verdict:
    """One claim; not measured where a kind it needs is missing."""
    quantities: tuple[Quantity, ...] = ()
    if paths is not None and all(kind in paths.logp for kind in claim.kinds):
        quantities = tuple(
            Quantity(name, sign, mean_interval(values))
            for name, sign, values in claim.measure(paths)
        )
    return Verdict(claim.id, claim.stage, claim.sentence, claim.expected, quantities)


def prediction_explains(stage: str, forces: Sequence[ForceRow]) -> Verdict:
    """`1 − R² < 0.1` over a training's recorded steps."""
    left = unexplained([row for row in forces if row.stage == stage])
    return Verdict(
        f"{stage}/forces",
        stage,
        "The first-order forces of a step explain the change it made",
        f"1 − R² < {UNEXPLAINED_SHARE}",
        (Quantity("1 − R²", -1, left, UNEXPLAINED_SHARE, ""),),
    )


def unexplained(rows: Sequence[ForceRow]) -> Interval:
    """`1 − R² = Σ(measured − predicted)²/Σ measured²`, with the jackknife's interval over pairs."""
    return unexplained_share(
        np.array([row.measured for row in rows]),
        np.array([row.predicted for row in rows]),
        np.array([row.pair_id for row in rows]),
    )
