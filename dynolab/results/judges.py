"""The rows of a comparison of policies: their answers, what judges said, and what that comes to."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from dynolab.data.rows import Row, Split
from dynolab.errors import ConfigError
from dynolab.results.forces import Measured
from dynolab.statistics import Interval

Preferred = Literal["a", "b", "tie"]
Outcome = Literal["a", "b", "tie", "refused", "unparsable", "failed"]
"""The policy that a judge prefers, or why there is no verdict."""

PARSED: frozenset[Outcome] = frozenset({"a", "b", "tie"})


class PolicyAnswer(Row):
    """What a policy says to a prompt: `answers.jsonl`.

    `truth` checks the answer where there is one; `finished`: it ended itself, within the tokens
    that it was given; `tokens` drawn, end-of-sequence included.
    """

    id: str
    split: Split
    prompt: str
    truth: str | None
    answer: str
    finished: bool
    tokens: int


class Contest(Row):
    """Two policies' answers to one prompt; `truth` is for judges that check against it."""

    id: str
    prompt: str
    truth: str | None = None
    a: str
    b: str
    answer_a: str
    answer_b: str


class Judgement(Row):
    """What one judge made of a contest in one order: `judgements.jsonl`.

    `swapped`: b's answer was shown first. `outcome` names the policy, whatever the order. `said`
    is why there is no verdict: the beginning of what the judge said, or what failed.
    """

    judge: str
    id: str
    a: str
    b: str
    swapped: bool
    outcome: Outcome
    said: str = ""

    @property
    def parsed(self) -> bool:
        """Whether there is a verdict."""
        return self.outcome in PARSED

    @property
    def chose_first(self) -> bool:
        """Whether the verdict is for the answer that was shown first."""
        return self.outcome == ("b" if self.swapped else "a")


class JudgementCounts(Row):
    """How many verdicts were asked for, and what became of every one: these add up."""

    asked: int
    parsed: int
    refused: int
    unparsable: int
    failed: int

    @model_validator(mode="after")
    def _adds_up(self) -> JudgementCounts:
        total = self.parsed + self.refused + self.unparsable + self.failed
        if total != self.asked:
            raise ConfigError("judgements", total, f"must add up to the {self.asked} asked for")
        return self


class WinRate(Measured):
    """How often one judge prefers policy a to policy b: `win_rates.jsonl`.

    A prompt counts where the judge has a verdict in both orders: `judged` of `prompts`. `rate` is
    the mean over them of what the prompt is worth to a: its orders' mean of 1 (a), ½ (tie) and 0
    (b); [`low`, `high`] is its 95% interval over prompts. `wins`, `ties` and `losses` are prompts
    worth more than, as much as and less than ½. In [`lowest`, `highest`] the rate would lie
    whatever the verdicts on the other prompts had been.

    `first_share` is the share of verdicts, ties aside, that go to the answer shown first, with its
    95% interval: ½ is no liking for a place. `flipped` prompts have a in one order and b in the
    other.
    """

    judge: str
    a: str
    b: str
    prompts: int
    judged: int
    rate: float
    low: float
    high: float
    wins: int
    ties: int
    losses: int
    lowest: float
    highest: float
    first_share: float
    first_low: float
    first_high: float
    flipped: int
    counts: JudgementCounts

    @property
    def interval(self) -> Interval:
        """The rate with its interval."""
        return Interval(self.rate, self.low, self.high, self.judged)

    @property
    def first(self) -> Interval:
        """The share of the answer shown first, with its interval."""
        return Interval(self.first_share, self.first_low, self.first_high, self.judged)


class Agreement(Measured):
    """How far two judges agree on which of two policies answers better: `agreements.jsonl`.

    On the `prompts` that both judged in both orders: `share` of equal verdicts (a, tie or b), and
    Cohen's `kappa` with its 95% bootstrap interval over prompts; kappa is not a number where both
    judges say one and the same throughout.
    """

    first: str
    second: str
    a: str
    b: str
    prompts: int
    share: float
    kappa: float
    kappa_low: float
    kappa_high: float
