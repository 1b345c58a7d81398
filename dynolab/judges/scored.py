"""Judgements from numeric scores: the higher score wins in either order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dynolab.judges.contests import ORDERS
from dynolab.results.judges import Contest, Judgement, Outcome

ROUNDING = 1e-9

Scored = float | str
"""An answer's score, or the reason why it has none."""


def scored_judgements(
    judge: str,
    contests: Sequence[Contest],
    scores: Sequence[tuple[Scored, Scored]],
    *,
    tie: float = 0.0,
) -> list[Judgement]:
    """Judgements of every contest in both orders, from the scores of a's and b's answers.

    **Arguments:** `tie`: score differences up to this, plus rounding, are ties.
    """
    judgements = []
    for contest, pair in zip(contests, scores, strict=True):
        outcome, reason = _outcome(*pair, tie)
        judgements += [
            Judgement(
                judge=judge,
                id=contest.id,
                a=contest.a,
                b=contest.b,
                swapped=swapped,
                outcome=outcome,
                said=reason,
            )
            for swapped in ORDERS
        ]
    return judgements


def _outcome(a: Scored, b: Scored, tie: float) -> tuple[Outcome, str]:
    for score in (a, b):
        if isinstance(score, str):
            return "failed", score
        if not math.isfinite(score):
            return "failed", f"an answer's score is {score}"
    difference = float(a) - float(b)
    if abs(difference) <= tie + ROUNDING:
        return "tie", ""
    return ("a" if difference > 0 else "b"), ""
