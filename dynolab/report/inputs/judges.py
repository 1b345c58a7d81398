"""Data of the page that compares policies: their answers and the judges' verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

from dynolab.judges.config import JudgeConfig
from dynolab.judges.win_rate import agreement
from dynolab.report.inputs.files import PageInputs, rows
from dynolab.results.judges import Agreement, Judgement, PolicyAnswer, WinRate


@dataclass(frozen=True)
class Judged:
    """One judge's verdicts, and their win rate of every policy over the baseline."""

    judgements: tuple[Judgement, ...]
    rates: tuple[WinRate, ...]


@dataclass(frozen=True)
class JudgePageInputs(PageInputs):
    """Everything the page shows; `answers`: by policy, the baseline last; `judged`: by judge."""

    baseline: str
    judges: Mapping[str, JudgeConfig]
    temperature: float
    answers: Mapping[str, tuple[PolicyAnswer, ...]]
    judged: Mapping[str, Judged]

    @property
    def policies(self) -> list[str]:
        """The policies that are compared with the baseline."""
        return [name for name in self.answers if name != self.baseline]

    @property
    def rates(self) -> list[WinRate]:
        """Every policy's win rates, judge by judge."""
        return [
            rate
            for policy in self.policies
            for judged in self.judged.values()
            for rate in judged.rates
            if rate.a == policy
        ]

    @cached_property
    def agreements(self) -> tuple[Agreement, ...]:
        """Agreement of every two judges on every policy for which both have verdicts."""
        every = (
            agreement(self._of(first, policy), self._of(second, policy))
            for policy in self.policies
            for first, second in combinations(self.judged, 2)
        )
        return tuple(agreed for agreed in every if agreed is not None)

    def _of(self, judge: str, policy: str) -> list[Judgement]:
        return [verdict for verdict in self.judged[judge].judgements if verdict.a == policy]


def read_policy_answers(folder: Path) -> tuple[PolicyAnswer, ...]:
    """Reads a policy's answers."""
    return rows(folder, "answers.jsonl", PolicyAnswer)


def read_judged(folder: Path) -> Judged:
    """Reads the result of a judge stage."""
    return Judged(
        rows(folder, "judgements.jsonl", Judgement), rows(folder, "win_rates.jsonl", WinRate)
    )
