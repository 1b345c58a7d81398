"""Judges by scores: the higher score wins in either order; a judge by exact rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dynolab.data.rows import PromptRow
from dynolab.endpoint.client import OnProgress, ignore_progress
from dynolab.judges.contests import ORDERS
from dynolab.results.judges import Contest, Judgement, Outcome
from dynolab.rollouts.rewards import RewardConfig, Rewards

WORLD_REWARDS = (
    RewardConfig(name="world_answer", weight=4),
    RewardConfig(name="world_form", weight=2),
    RewardConfig(name="world_style", weight=1),
)
"""Answer quality in the built-in world. Each part outweighs all later ones: a right fact beats any
style, and among answers equal in fact and form the preferred slot words win."""


class ExactJudge:
    """Prefers the answer of the higher reward; answers of equal reward tie.

    **Arguments:** `rewards`: by default the built-in world's.

    **Raises:** `ConfigError` for an invalid reward.
    """

    def __init__(
        self, name: str = "exact", rewards: Sequence[RewardConfig] = WORLD_REWARDS
    ) -> None:
        self.name, self._rewards = name, Rewards(rewards)

    def judge(
        self, contests: Sequence[Contest], on_progress: OnProgress = ignore_progress
    ) -> list[Judgement]:
        """As `Judge.judge`; raises `ConfigError` if a reward cannot score a contest's prompt."""
        scores = [
            tuple(
                self._rewards(
                    contest.prompt,
                    [contest.answer_a, contest.answer_b],
                    PromptRow(id=contest.id, prompt=contest.prompt, answer=contest.truth),
                )
            )
            for contest in contests
        ]
        return scored_judgements(self.name, contests, [(a, b) for a, b in scores])


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
