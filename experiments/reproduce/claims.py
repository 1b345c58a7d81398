"""Shapes of learning paths that the papers report for finetuning, and whether trainings show them.

The claims are those of Ren & Sutherland (arXiv 2407.10490, §4) with their figures, from the paper
or from the authors' logs: shapes carry over to other models and data, numbers do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dynolab.claims.arms import EVEN
from dynolab.claims.claim import (
    Claim,
    Trainings,
    falls,
    falls_at_once,
    falls_more,
    gains_more,
    gap_changes,
    judge,
    rises,
    rises_early_then_lags,
    rises_then_falls,
)
from dynolab.claims.verdict import Verdict, above
from dynolab.probes.paths import LearningPaths
from dynolab.results.arms import (
    AFTER_EXTENDED,
    AFTER_SFT,
    EXTENDED,
    EXTENDED_HALF,
    FROM_BASE,
    IPO,
    ON_POLICY,
    ON_POLICY_IPO,
    RESAMPLED,
    SFT,
)
from dynolab.results.study import ARGMAX
from dynolab.statistics import Interval

_ARGUED = "argued in §3.3: what is pushed down lies on a peak of the policy, in no valley"
CLAIMS: tuple[Claim, ...] = (
    Claim(SFT, "chosen", "The chosen answer rises", rises("chosen"), "−152 → −92 (Pythia-410m)"),
    Claim(
        SFT,
        "rephrased",
        "Its rephrases rise early, then flatten or fall",
        rises_early_then_lags("chosen_gptsemantic"),
        "rise in the first 1–10% of training",
    ),
    Claim(
        SFT,
        "format",
        "Answers of its form with another meaning end below their start",
        falls("chosen_gptformat"),
        "below the start",
    ),
    Claim(
        SFT,
        "rejected",
        "The rejected answer rises, then falls back",
        rises_then_falls("rejected"),
        "rises, then falls back",
    ),
    Claim(
        SFT,
        "irr_test",
        "Answers to untrained questions rise, then fall back",
        rises_then_falls("irr_test"),
        "rise, then fall back",
    ),
    Claim(
        SFT,
        "irr_train",
        "Answers to other training questions keep their gain",
        rises("irr_train"),
        "peak at 90–99% of training",
    ),
    Claim(
        SFT,
        "hallucination",
        "They gain more than answers to untrained questions",
        gains_more("irr_train", "irr_test"),
        "gain more",
    ),
    Claim(
        SFT,
        "permuted",
        "Shuffled words of the chosen answer fall from the start",
        falls_at_once("random_permute"),
        "fall from the start",
    ),
    Claim(
        SFT,
        "nonhuman",
        "Shuffled words of an unrelated answer fall from the start",
        falls_at_once("random_nonhum"),
        "fall from the start",
    ),
    Claim(
        SFT,
        "argmax",
        "y* rises under SFT, too: alone it tells nothing",
        rises(ARGMAX),
        "−61.6 → −44.5 (Pythia-410m)",
    ),
    Claim(
        SFT,
        "gap",
        "The gap y* − y⁺ shrinks",
        gap_changes(-1),
        "90 → 48 (Pythia-410m), 81 → 46 (Qwen)",
    ),
    Claim(
        FROM_BASE,
        "chosen",
        "The chosen answer rises, peaks and falls",
        rises_then_falls("chosen"),
        "−152 → −144 → −164 (Pythia-410m)",
    ),
    Claim(
        FROM_BASE,
        "rejected",
        "The rejected answer falls more than the chosen one",
        falls_more("rejected", "chosen"),
        "−121 → −198 (Pythia-410m)",
    ),
    Claim(FROM_BASE, "gap", "The gap y* − y⁺ grows", gap_changes(1), "90 → 115 (Pythia-410m)"),
    Claim(
        AFTER_SFT,
        "chosen",
        "The chosen answer falls at once, without a peak",
        falls_at_once("chosen"),
        "−78 → −136 (Qwen1.5-1.8B)",
    ),
    Claim(
        AFTER_SFT,
        "rejected",
        "The rejected answer falls more than the chosen one",
        falls_more("rejected", "chosen"),
        "−91 → −295 (Qwen1.5-1.8B)",
    ),
    Claim(
        AFTER_SFT,
        "argmax",
        "y*, what the model already prefers, rises",
        rises(ARGMAX),
        "−30 → −15.4 (rerun)",
    ),
    Claim(
        AFTER_SFT,
        "gap",
        "The gap y* − y⁺ grows: squeezing",
        gap_changes(1),
        "81 → 124 (Qwen1.5-1.8B)",
    ),
    Claim(
        AFTER_EXTENDED,
        "chosen",
        "The chosen answer falls less than after plain SFT",
        rises("chosen"),
        "−36 against −58 (Qwen1.5-1.8B)",
        against=AFTER_SFT,
    ),
    Claim(
        AFTER_EXTENDED,
        "rejected",
        "The rejected answer falls less",
        rises("rejected"),
        "−175 against −204 (Qwen1.5-1.8B)",
        against=AFTER_SFT,
    ),
    Claim(
        AFTER_EXTENDED,
        "gap",
        "The gap y* − y⁺ grows less",
        gap_changes(-1),
        "+58 against +74 (rerun)",
        against=AFTER_SFT,
    ),
    Claim(
        AFTER_EXTENDED,
        "argmax",
        "y* rises less",
        falls(ARGMAX),
        "it does not: +19 against +15 (rerun)",
        against=AFTER_SFT,
    ),
    Claim(
        RESAMPLED,
        "chosen",
        "The chosen answer falls less than against the data's rejected answers",
        rises("chosen"),
        _ARGUED,
        against=AFTER_SFT,
    ),
    Claim(
        RESAMPLED,
        "gap",
        "The gap y* − y⁺ grows less",
        gap_changes(-1),
        _ARGUED,
        against=AFTER_SFT,
    ),
    Claim(
        ON_POLICY,
        "chosen",
        "The data's chosen answer falls less than under DPO on the data",
        rises("chosen"),
        _ARGUED,
        against=AFTER_SFT,
    ),
    Claim(
        ON_POLICY,
        "gap",
        "The gap y* − y⁺ grows less",
        gap_changes(-1),
        _ARGUED,
        against=AFTER_SFT,
    ),
    Claim(
        ON_POLICY_IPO,
        "chosen",
        "The data's chosen answer falls less than under IPO on the data",
        rises("chosen"),
        _ARGUED,
        against=IPO,
    ),
    Claim(
        ON_POLICY_IPO,
        "gap",
        "The gap y* − y⁺ grows less",
        gap_changes(-1),
        _ARGUED,
        against=IPO,
    ),
)

_CLAIMED_LIKE = {EXTENDED: SFT, EXTENDED_HALF: SFT, FROM_BASE: AFTER_SFT}
"""Trainings of which the claims on another are made, too, unless it has its own of that name."""


def claims_on(training: str) -> tuple[Claim, ...]:
    """The claims on a training by itself; SFT on both answers is not to lower the rejected one."""
    both = training in (EXTENDED, EXTENDED_HALF)
    like = _CLAIMED_LIKE.get(training)
    alone = [claim for claim in CLAIMS if claim.against is None]
    figures_found = {
        **{c.name: replace(c, training=training, papers="") for c in alone if c.training == like},
        **{claim.name: claim for claim in alone if claim.training == training},
    }
    return tuple(
        claim for claim in figures_found.values() if not (both and claim.name == "rejected")
    )


def assess_log(training: str, paths: LearningPaths) -> tuple[Verdict, ...]:
    """Judges the claims on one training that its paths can carry, over their pairs."""
    verdicts = (judge(claim, [{training: paths}]) for claim in claims_on(training))
    return tuple(verdict for verdict in verdicts if verdict.outcome != "not measured")


WON_IN_PAPERS = "0.65–0.69 and 0.52–0.60 by two LLM judges"


def assess_reproduction(
    seeds: Sequence[Trainings], won: Interval | None = None, *, same_pairs: bool = False
) -> tuple[Verdict, ...]:
    """Judges every claim, measured or not.

    **Arguments:**

    - `seeds`: for each seed, the paths of its probed trainings on training prompts.
    - `won`: share of contests that answers after extended SFT and DPO win against those after SFT
      and DPO; ties count half.
    - `same_pairs`: whether all seeds train on the same pairs.
    """
    return (
        *(judge(claim, seeds, same_pairs=same_pairs) for claim in CLAIMS),
        Verdict.of(
            f"{AFTER_EXTENDED}/won",
            AFTER_EXTENDED,
            "Its answers are preferred to those of DPO after plain SFT",
            f"> {EVEN:g}; papers: {WON_IN_PAPERS}",
            *([] if won is None else [above("share of contests", won, EVEN, unit="")]),
        ),
    )
