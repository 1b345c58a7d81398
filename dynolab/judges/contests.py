"""Contests between policies, and the judge protocol: two answers in, verdicts in both orders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from dynolab.endpoint.client import OnProgress, ignore_progress
from dynolab.errors import ConfigError
from dynolab.results.judges import Contest, Judgement, JudgementCounts, PolicyAnswer

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
    return [
        Contest(
            id=name,
            prompt=answer.prompt,
            turn=answer.turn,
            truth=answer.truth or answer.chosen,
            a=a,
            b=b,
            answer_a=answer.answer,
            answer_b=by_id[b][name].answer,
        )
        for name, answer in by_id[a].items()
    ]


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
