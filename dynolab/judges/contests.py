"""Contests between policies, and what a judge is: two answers in, verdicts in both orders out."""

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
    """Says which of two answers to a prompt is better."""

    @property
    def name(self) -> str:
        """What its judgements are known by."""

    def judge(
        self, contests: Sequence[Contest], on_progress: OnProgress = ignore_progress
    ) -> list[Judgement]:
        """Two judgements of every contest: as it stands, then with b's answer first.

        `on_progress(done, of)` is called as verdicts come.
        """


def contests(answers: Mapping[str, Sequence[PolicyAnswer]], a: str, b: str) -> list[Contest]:
    """The contests of policy a against policy b, in the order of a's answers.

    **Arguments:** `answers`: by policy.

    **Raises:** `ConfigError` where the two do not answer the same prompts, each once.
    """
    known = {policy: _by_id(policy, answers[policy]) for policy in (a, b)}
    for policy, other in ((a, b), (b, a)):
        for name, answer in known[policy].items():
            if name not in known[other] or known[other][name].prompt != answer.prompt:
                raise ConfigError(
                    f"answers of {other}",
                    name,
                    f"{policy} answers this prompt and {other} does not; let both answer the same",
                )
    return [
        Contest(
            id=name,
            prompt=answer.prompt,
            truth=answer.truth,
            a=a,
            b=b,
            answer_a=answer.answer,
            answer_b=known[b][name].answer,
        )
        for name, answer in known[a].items()
    ]


def count(judgements: Iterable[Judgement]) -> JudgementCounts:
    """What became of every verdict that was asked for."""
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
