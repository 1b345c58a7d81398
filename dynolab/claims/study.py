"""Judges which phenomena of Ren & Sutherland (arXiv 2407.10490, §4) a study shows.

Figures are means over training prompts with 95% intervals over pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dynolab.claims.claim import (
    Claim,
    falls,
    falls_more,
    gains_more,
    gap_changes,
    judge,
    rises,
    rises_then_falls,
)
from dynolab.claims.verdict import Verdict, explains
from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.probes.paths import LearningPaths
from dynolab.results.study import ARGMAX, ForceRow
from dynolab.statistics import Interval, unexplained_share

CLAIMS: tuple[Claim, ...] = (
    Claim("sft", "chosen", "The chosen answer rises", rises("chosen")),
    Claim(
        "sft",
        "rejected",
        "The rejected answer rises, then falls back",
        rises_then_falls("rejected"),
    ),
    Claim(
        "sft",
        "irr_test",
        "Answers to untrained questions (irr_test) rise, then fall back",
        rises_then_falls("irr_test"),
    ),
    Claim(
        "sft",
        "hallucination",
        "Answers to other training questions gain more than those to untrained ones",
        gains_more("irr_train", "irr_test"),
    ),
    Claim("sft", "random_permute", "Shuffled words (random_permute) fall", falls("random_permute")),
    Claim("sft", "gap", "The gap from the chosen answer up to y* shrinks", gap_changes(-1)),
    Claim(
        "dpo",
        "rejected",
        "The rejected answer falls steeply: more than the chosen one",
        falls_more("rejected", "chosen"),
    ),
    Claim("dpo", "chosen", "The chosen answer falls, though it is preferred", falls("chosen")),
    Claim("dpo", "argmax", "y*, what the model already prefers, rises", rises(ARGMAX)),
    Claim(
        "dpo",
        "gap",
        "The gap from the chosen answer up to y* grows: squeezing",
        gap_changes(1),
    ),
)

_FAIL_BY_DESIGN = frozenset({"sft/rejected"})
"""Claims that fail by design when training on both answers of a pair."""


def claims_of(objective: str) -> tuple[Claim, ...]:
    """The claims to judge for a training, by its objective.

    Claims on DPO apply to every pair loss, though the papers make them for DPO only; claims on SFT
    also apply to SFT on both answers, except for the fall of the rejected ones.
    """
    if objective in PAIR_OBJECTIVES:
        base, left_out = "dpo", frozenset[str]()
    elif objective == "sft_extended":
        base, left_out = "sft", _FAIL_BY_DESIGN
    else:
        base, left_out = objective, frozenset()
    return tuple(
        replace(claim, training=objective)
        for claim in CLAIMS
        if claim.training == base and claim.id not in left_out
    )


def assess(
    trainings: Mapping[str, LearningPaths | None], forces: Sequence[ForceRow] = ()
) -> tuple[Verdict, ...]:
    """Judges all claims about a study's trainings, on training prompts.

    **Arguments:** `trainings`: paths by the objective's name, in the study's order; None for a
    training that was not probed.
    """
    probed = {name: paths for name, paths in trainings.items() if paths is not None}
    return (
        *(judge(claim, [probed]) for name in trainings for claim in claims_of(name)),
        *(
            explains(
                f"{name}/forces",
                name,
                "The first-order forces of a step explain the change it made",
                unexplained([row for row in forces if row.stage == name]),
            )
            for name in trainings
        ),
    )


def unexplained(rows: Sequence[ForceRow]) -> Interval:
    """`1 − R² = Σ(measured − predicted)²/Σ measured²`, with a jackknife interval over pairs."""
    return unexplained_share(
        np.array([row.measured for row in rows]),
        np.array([row.predicted for row in rows]),
        np.array([row.pair_id for row in rows]),
    )
