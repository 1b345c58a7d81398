"""What the page of a comparison of policies is made of: their answers and the judges' verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

from dynolab.data.rows import read_rows
from dynolab.judges.agreement import agreement
from dynolab.judges.config import JudgeConfig
from dynolab.report.inputs.study import StageFacts
from dynolab.results.judges import Agreement, Judgement, PolicyAnswer, WinRate


@dataclass(frozen=True)
class Judged:
    """What one judge said, and every policy's win rate over the baseline by it."""

    judgements: tuple[Judgement, ...]
    rates: tuple[WinRate, ...]


@dataclass(frozen=True)
class JudgePageInputs:
    """All that the page shows; `said` by policy, the baseline last, `judged` by judge."""

    name: str
    baseline: str
    judges: Mapping[str, JudgeConfig]
    temperature: float
    said: Mapping[str, tuple[PolicyAnswer, ...]]
    judged: Mapping[str, Judged]
    settings: str = ""
    stages: tuple[StageFacts, ...] = ()

    @property
    def policies(self) -> list[str]:
        """Those that are compared with the baseline."""
        return [name for name in self.said if name != self.baseline]

    @property
    def rates(self) -> list[WinRate]:
        """Every policy's win rates, judge by judge."""
        return [
            rate
            for policy in self.policies
            for one in self.judged.values()
            for rate in one.rates
            if rate.a == policy
        ]

    @cached_property
    def agreements(self) -> tuple[Agreement, ...]:
        """Of every two judges on every policy, where both have verdicts."""
        found = (
            agreement(self._of(first, policy), self._of(second, policy))
            for policy in self.policies
            for first, second in combinations(self.judged, 2)
        )
        return tuple(one for one in found if one is not None)

    def _of(self, judge: str, policy: str) -> list[Judgement]:
        return [one for one in self.judged[judge].judgements if one.a == policy]


def read_said(folder: Path) -> tuple[PolicyAnswer, ...]:
    """Reads a policy's answers."""
    return tuple(read_rows(folder / "answers.jsonl", PolicyAnswer))


def read_judged(folder: Path) -> Judged:
    """Reads the result of a judge stage."""
    return Judged(
        tuple(read_rows(folder / "judgements.jsonl", Judgement)),
        tuple(read_rows(folder / "win_rates.jsonl", WinRate)),
    )
