"""Contests between policies, and their judges: two answers in, verdicts in both orders.

Of judges by scores, such as exact rewards, the higher score wins in either order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from dynolab.data.rows import PromptRow
from dynolab.endpoint.client import OnProgress, ignore_progress
from dynolab.errors import ConfigError
from dynolab.results.judges import (
    Contest,
    Judgement,
    JudgementCounts,
    Outcome,
    PolicyAnswer,
)
from dynolab.rollouts.rewards import RewardConfig, Rewards

ORDERS = (False, True)
"""Whether b's answer is shown first."""


class Judge(Protocol):
    """Decides which of two answers to a prompt is better."""

    @property
    def name(self) -> str:
        """The judge's name in its judgements."""

    def judge(
        self, contests: Sequence[Contest], on_progress: OnProgress = ignore_progress
    ) -> list[Judgement]:
        """Judges every contest twice: with a's answer first, then with b's.

        Calls `on_progress(done, of)` as verdicts arrive.
        """


def contests(answers: Mapping[str, Sequence[PolicyAnswer]], a: str, b: str) -> list[Contest]:
    """The contests of policy a against policy b, in the order of a's answers.

    **Arguments:** `answers`: answers by policy.

    **Raises:** `ConfigError` unless both answer the same prompts, each once.
    """
    by_id = {policy: _by_id(policy, answers[policy]) for policy in (a, b)}
    for policy, other in ((a, b), (b, a)):
        for name, answer in by_id[policy].items():
            if name not in by_id[other] or by_id[other][name].prompt != answer.prompt:
                raise ConfigError(
                    f"answers of {other}",
                    name,
                    f"{policy} answers this prompt and {other} does not; let both answer the same",
                )
    contests = []
    for name, answer in by_id[a].items():
        contest = Contest(
            id=name,
            prompt=answer.prompt,
            turn=answer.turn,
            truth=answer.truth or answer.chosen,
            a=a,
            b=b,
            answer_a=answer.answer,
            answer_b=by_id[b][name].answer,
        )
        contests.append(contest)
    return contests


def count(judgements: Iterable[Judgement]) -> JudgementCounts:
    """Counts judgements by outcome."""
    outcomes = Counter(
        "parsed" if judgement.parsed else judgement.outcome for judgement in judgements
    )
    return JudgementCounts(
        asked=outcomes.total(),
        parsed=outcomes["parsed"],
        refused=outcomes["refused"],
        unparsable=outcomes["unparsable"],
        failed=outcomes["failed"],
    )


def _by_id(policy: str, answers: Sequence[PolicyAnswer]) -> dict[str, PolicyAnswer]:
    by_id: dict[str, PolicyAnswer] = {}
    for answer in answers:
        if answer.id in by_id:
            raise ConfigError(
                f"answers of {policy}", answer.id, "two have this id; give each its own"
            )
        by_id[answer.id] = answer
    return by_id


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
        """The higher reward wins; raises `ConfigError` where one cannot score a prompt."""
        scores = []
        for contest in contests:
            row = PromptRow(id=contest.id, prompt=contest.prompt, answer=contest.truth)
            a, b = self._rewards(contest.prompt, [contest.answer_a, contest.answer_b], row)
            scores.append((a, b))
        return scored_judgements(self.name, contests, scores)


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
        for swapped in ORDERS:
            judgements.append(judgement_of(judge, contest, swapped, outcome, reason))
    return judgements


def judgement_of(
    judge: str, contest: Contest, swapped: bool, outcome: Outcome, text: str
) -> Judgement:
    """A judge's outcome of a contest in one order, and what it said without a verdict."""
    return Judgement(
        judge=judge,
        id=contest.id,
        a=contest.a,
        b=contest.b,
        swapped=swapped,
        outcome=outcome,
        said=text,
    )


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
