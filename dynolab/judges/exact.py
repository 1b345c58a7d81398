"""A judge that scores answers by exact rewards."""

from __future__ import annotations

from collections.abc import Sequence

from dynolab.data.rows import PromptRow
from dynolab.endpoint.client import OnProgress, ignore_progress
from dynolab.judges.scored import scored_judgements
from dynolab.results.judges import Contest, Judgement
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
