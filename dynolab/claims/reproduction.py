"""The shapes that the papers report of finetuning, and what trainings show of each.

The claims are those of Ren & Sutherland (arXiv 2407.10490, §4) with their figures, from the paper
or from the authors' logs: shapes carry over to other models and data, numbers do not. A claim's
quantities are means over training prompts; with several seeds over seeds, paired by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.claims.study import (
    Quantity,
    Verdict,
    falls,
    falls_more,
    gains_more,
    gap_changes,
    rises,
    rises_then_falls,
)
from dynolab.probes.paths import LearningPaths, change
from dynolab.results.study import ARGMAX
from dynolab.statistics import Interval, mean_interval

SFT, EXTENDED, EXTENDED_HALF = "sft", "sft_extended", "sft_extended_half"
FROM_BASE, AFTER_SFT = "from-base", "dpo"
AFTER_EXTENDED, AFTER_EXTENDED_HALF = "extended", "extended-half"
"""DPO by what it starts from (`Start`)."""
RESAMPLED, ON_POLICY, IPO, ON_POLICY_IPO = "resampled", "on-policy", "ipo", "on-policy-ipo"
"""After SFT, by the pairs that are learned from (`Pairs`) and by the loss."""

TITLES = {
    SFT: "SFT",
    EXTENDED: "extended SFT",
    EXTENDED_HALF: "half-weight extended SFT",
    FROM_BASE: "DPO from the base model",
    AFTER_SFT: "DPO after SFT",
    AFTER_EXTENDED: "DPO after extended SFT",
    AFTER_EXTENDED_HALF: "DPO after half-weight extended SFT",
    RESAMPLED: "DPO against resampled answers",
    ON_POLICY: "on-policy DPO",
    IPO: "IPO after SFT",
    ON_POLICY_IPO: "on-policy IPO",
}
"""Trainings as pages call them. Claims on the extension are about the one in which a chosen answer
has the weight that it has in SFT; that of half the weight is there to tell the two apart."""

Trainings = Mapping[str, LearningPaths]
Values = Float[ndarray, "pairs"]
Parts = tuple[tuple[str, Literal[1, -1], Values], ...]


@dataclass(frozen=True)
class Shape:
    """A claim about one training, or about one against another.

    `papers` is what the papers measured of it; `needs` the trainings with the kinds of answers.
    """

    id: str
    training: str
    sentence: str
    expected: str
    papers: str
    needs: tuple[tuple[str, str], ...]
    measure: Callable[[Trainings], Parts]


def _of(
    training: str,
    name: str,
    sentence: str,
    expected: str,
    papers: str,
    kinds: Sequence[str],
    measure: Callable[[LearningPaths], Parts],
) -> Shape:
    """A claim about one training."""
    return Shape(
        f"{training}/{name}",
        training,
        sentence,
        expected,
        papers,
        tuple((training, kind) for kind in kinds),
        lambda found: measure(found[training]),
    )


def _against(
    training: str,
    name: str,
    sentence: str,
    papers: str,
    sign: Literal[1, -1],
    moved: Callable[[LearningPaths], Values],
    kinds: Sequence[str],
    other: str = AFTER_SFT,
) -> Shape:
    """A claim about a training against another, paired by pair."""
    return Shape(
        f"{training}/{name}",
        training,
        sentence,
        "difference > 0" if sign > 0 else "difference < 0",
        papers,
        tuple((one, kind) for one in (training, other) for kind in kinds),
        lambda found: (
            (f"{training} − {other}", sign, moved(found[training]) - moved(found[other])),
        ),
    )


def early(paths: LearningPaths, kind: str) -> Values:
    """`log π_t(y) − log π_0(y)` at the last probe of the first quarter of training."""
    within = np.flatnonzero(paths.steps <= paths.steps[-1] / 4)
    return paths.logp[kind][max(within[-1], 1)] - paths.logp[kind][0]


def _rises_early_then_lags(kind: str) -> Callable[[LearningPaths], Parts]:
    """Rises in the first quarter, and gains less than the chosen answer afterwards."""

    def measure(paths: LearningPaths) -> Parts:
        own, chosen = (change(paths.logp[one]) - early(paths, one) for one in (kind, "chosen"))
        return (
            ("first quarter", 1, early(paths, kind)),
            ("rest, less the chosen's", -1, own - chosen),
        )

    return measure


def _falls_at_once(kind: str) -> Callable[[LearningPaths], Parts]:
    """Falls in the first quarter, and over the whole."""
    return lambda paths: (
        ("first quarter", -1, early(paths, kind)),
        (f"Δ {kind}", -1, change(paths.logp[kind])),
    )


def _moved(kind: str) -> Callable[[LearningPaths], Values]:
    return lambda paths: change(paths.logp[kind])


def _gap(paths: LearningPaths) -> Values:
    return change(paths.logp[ARGMAX] - paths.logp["chosen"])


_BOTH = ("chosen", ARGMAX)
_ARGUED = "argued in §3.3: what is pushed down lies on a peak of the policy, in no valley"
SHAPES: tuple[Shape, ...] = (
    _of(
        SFT,
        "chosen",
        "The chosen answer rises",
        "Δ > 0",
        "−152 → −92 (Pythia-410m)",
        ("chosen",),
        rises("chosen"),
    ),
    _of(
        SFT,
        "rephrased",
        "Its rephrases rise early, then flatten or fall",
        "first quarter > 0, rest below the chosen's",
        "rise in the first 1–10% of training",
        ("chosen_gptsemantic", "chosen"),
        _rises_early_then_lags("chosen_gptsemantic"),
    ),
    _of(
        SFT,
        "format",
        "Answers of its form with another meaning end below their start",
        "Δ < 0",
        "below the start",
        ("chosen_gptformat",),
        falls("chosen_gptformat"),
    ),
    _of(
        SFT,
        "rejected",
        "The rejected answer rises, then falls back",
        "rise > 0, then fall < 0",
        "rises, then falls back",
        ("rejected",),
        rises_then_falls("rejected"),
    ),
    _of(
        SFT,
        "irr_test",
        "Answers to untrained questions rise, then fall back",
        "rise > 0, then fall < 0",
        "rise, then fall back",
        ("irr_test",),
        rises_then_falls("irr_test"),
    ),
    _of(
        SFT,
        "irr_train",
        "Answers to other training questions keep their gain",
        "Δ > 0",
        "peak at 90–99% of training",
        ("irr_train",),
        rises("irr_train"),
    ),
    _of(
        SFT,
        "hallucination",
        "They gain more than answers to untrained questions",
        "Δ irr_train > Δ irr_test",
        "gain more",
        ("irr_train", "irr_test"),
        gains_more("irr_train", "irr_test"),
    ),
    _of(
        SFT,
        "permuted",
        "Shuffled words of the chosen answer fall from the start",
        "first quarter < 0, Δ < 0",
        "fall from the start",
        ("random_permute",),
        _falls_at_once("random_permute"),
    ),
    _of(
        SFT,
        "nonhuman",
        "Shuffled words of an unrelated answer fall from the start",
        "first quarter < 0, Δ < 0",
        "fall from the start",
        ("random_nonhum",),
        _falls_at_once("random_nonhum"),
    ),
    _of(
        SFT,
        "argmax",
        "y* rises under SFT, too: alone it tells nothing",
        "Δ > 0",
        "−61.6 → −44.5 (Pythia-410m)",
        (ARGMAX,),
        rises(ARGMAX),
    ),
    _of(
        SFT,
        "gap",
        "The gap y* − y⁺ shrinks",
        "Δ < 0",
        "90 → 48 (Pythia-410m), 81 → 46 (Qwen)",
        _BOTH,
        gap_changes(-1),
    ),
    _of(
        FROM_BASE,
        "chosen",
        "The chosen answer rises, peaks and falls",
        "rise > 0, then fall < 0",
        "−152 → −144 → −164 (Pythia-410m)",
        ("chosen",),
        rises_then_falls("chosen"),
    ),
    _of(
        FROM_BASE,
        "rejected",
        "The rejected answer falls more than the chosen one",
        "Δ < 0, Δ rejected < Δ chosen",
        "−121 → −198 (Pythia-410m)",
        ("rejected", "chosen"),
        falls_more("rejected", "chosen"),
    ),
    _of(
        FROM_BASE,
        "gap",
        "The gap y* − y⁺ grows",
        "Δ > 0",
        "90 → 115 (Pythia-410m)",
        _BOTH,
        gap_changes(1),
    ),
    _of(
        AFTER_SFT,
        "chosen",
        "The chosen answer falls at once, without a peak",
        "first quarter < 0, Δ < 0",
        "−78 → −136 (Qwen1.5-1.8B)",
        ("chosen",),
        _falls_at_once("chosen"),
    ),
    _of(
        AFTER_SFT,
        "rejected",
        "The rejected answer falls more than the chosen one",
        "Δ < 0, Δ rejected < Δ chosen",
        "−91 → −295 (Qwen1.5-1.8B)",
        ("rejected", "chosen"),
        falls_more("rejected", "chosen"),
    ),
    _of(
        AFTER_SFT,
        "argmax",
        "y*, what the model already prefers, rises",
        "Δ > 0",
        "−30 → −15.4 (rerun)",
        (ARGMAX,),
        rises(ARGMAX),
    ),
    _of(
        AFTER_SFT,
        "gap",
        "The gap y* − y⁺ grows: squeezing",
        "Δ > 0",
        "81 → 124 (Qwen1.5-1.8B)",
        _BOTH,
        gap_changes(1),
    ),
    _against(
        AFTER_EXTENDED,
        "chosen",
        "The chosen answer falls less than after plain SFT",
        "−36 against −58 (Qwen1.5-1.8B)",
        1,
        _moved("chosen"),
        ("chosen",),
    ),
    _against(
        AFTER_EXTENDED,
        "rejected",
        "The rejected answer falls less",
        "−175 against −204 (Qwen1.5-1.8B)",
        1,
        _moved("rejected"),
        ("rejected",),
    ),
    _against(
        AFTER_EXTENDED,
        "gap",
        "The gap y* − y⁺ grows less",
        "+58 against +74 (rerun)",
        -1,
        _gap,
        _BOTH,
    ),
    _against(
        AFTER_EXTENDED,
        "argmax",
        "y* rises less",
        "it does not: +19 against +15 (rerun)",
        -1,
        _moved(ARGMAX),
        (ARGMAX,),
    ),
    _against(
        RESAMPLED,
        "chosen",
        "The chosen answer falls less than against the data's rejected answers",
        _ARGUED,
        1,
        _moved("chosen"),
        ("chosen",),
    ),
    _against(RESAMPLED, "gap", "The gap y* − y⁺ grows less", _ARGUED, -1, _gap, _BOTH),
    _against(
        ON_POLICY,
        "chosen",
        "The data's chosen answer falls less than under DPO on the data",
        _ARGUED,
        1,
        _moved("chosen"),
        ("chosen",),
    ),
    _against(ON_POLICY, "gap", "The gap y* − y⁺ grows less", _ARGUED, -1, _gap, _BOTH),
    _against(
        ON_POLICY_IPO,
        "chosen",
        "The data's chosen answer falls less than under IPO on the data",
        _ARGUED,
        1,
        _moved("chosen"),
        ("chosen",),
        IPO,
    ),
    _against(ON_POLICY_IPO, "gap", "The gap y* − y⁺ grows less", _ARGUED, -1, _gap, _BOTH, IPO),
)

WON_IN_PAPERS = "0.65–0.69 and 0.52–0.60 by two LLM judges"


def assess_shapes(seeds: Sequence[Trainings], won: Interval | None = None) -> tuple[Verdict, ...]:
    """Every claim, measured or not.

    **Arguments:**

    - `seeds`: by seed the paths of the trainings that were probed, on training prompts.
    - `won`: share of contests that answers after extended SFT and DPO win against those after SFT
      and DPO, ties half.
    """
    even = 0.5
    share = () if won is None else (Quantity("share of contests", 1, won, even, ""),)
    judged = Verdict(
        f"{AFTER_EXTENDED}/won",
        AFTER_EXTENDED,
        "Its answers are preferred to those of DPO after plain SFT",
        f"> {even:g}; papers: {WON_IN_PAPERS}",
        share,
    )
    return (*(judge_shape(shape, seeds) for shape in SHAPES), judged)


def judge_shape(shape: Shape, seeds: Sequence[Trainings]) -> Verdict:
    """One claim; not measured where a training or a kind that it needs is missing in a seed."""
    there = [found for found in seeds if _has(found, shape)]
    quantities: tuple[Quantity, ...] = ()
    if there and len(there) == len(seeds):
        measured = [shape.measure(found) for found in there]
        quantities = tuple(
            Quantity(name, sign, _interval([parts[place][2] for parts in measured]))
            for place, (name, sign, _) in enumerate(measured[0])
        )
    expected = f"{shape.expected}; papers: {shape.papers}"
    return Verdict(shape.id, shape.training, shape.sentence, expected, quantities)


def _has(found: Trainings, shape: Shape) -> bool:
    return all(training in found and kind in found[training].logp for training, kind in shape.needs)


def _interval(seeds: Sequence[Values]) -> Interval:
    """Over seeds of each seed's mean over pairs; with one seed over its pairs."""
    if len(seeds) == 1:
        return mean_interval(seeds[0])
    return mean_interval(np.array([mean_interval(values).mean for values in seeds]))
