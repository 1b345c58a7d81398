"""The rows of a comparison of policies: their answers, the judgements, and win rates."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dynolab.data.rows import Prompted, Row, Split
from dynolab.errors import ConfigError
from dynolab.results.forces import Measured
from dynolab.statistics import Interval

Preferred = Literal["a", "b", "tie"]
Outcome = Literal["a", "b", "tie", "refused", "unparsable", "failed"]
"""The policy that a judge prefers, or why there is no verdict."""

PARSED: frozenset[Outcome] = frozenset({"a", "b", "tie"})


class PolicyAnswer(Prompted):
    """A policy's answer to a prompt: `answers.jsonl`.

    `truth` is the answer to check against, if any; `chosen`: the data's preferred one, if known;
    `finished`: it ended with end-of-sequence within the token limit; `tokens`: number of tokens
    sampled, end-of-sequence included.
    """

    id: str
    split: Split
    prompt: str
    truth: str | None
    chosen: str | None = Field(None, exclude_if=lambda chosen: chosen is None)
    answer: str
    finished: bool
    tokens: int


class Contest(Prompted):
    """Two policies' answers to one prompt; `truth` is for judges that check against it.

    It is the right answer, or where none is known the data's preferred one.
    """

    id: str
    prompt: str
    truth: str | None = None
    a: str
    b: str
    answer_a: str
    answer_b: str


class Judgement(Row):
    """One judge's outcome for a contest in one order: `judgements.jsonl`.

    `swapped`: b's answer was shown first. `outcome` names the policy, whatever the order. `said`
    explains a missing verdict: the beginning of the judge's reply, or the failure.
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
    """Number of verdicts requested and of each outcome; the outcomes add up to `asked`."""

    asked: int
    parsed: int
    refused: int
    unparsable: int
    failed: int

    @model_validator(mode="after")
    def _adds_up(self) -> JudgementCounts:
        total = self.parsed + self.refused + self.unparsable + self.failed
        if total != self.asked:
            raise ConfigError("judgements", total, f"must add up to asked = {self.asked}")
        return self


class WinRate(Measured):
    """How often one judge prefers policy a to policy b: `win_rates.jsonl`.

    A prompt counts if the judge has a verdict in both orders: `judged` of `prompts`. Its score is
    the mean over both orders of 1 (a), ½ (tie) and 0 (b). `rate` is the mean score, [`low`, `high`]
    its 95% interval over prompts. `wins`, `ties` and `losses` count prompts with a score above, at
    and below ½. [`lowest`, `highest`] bounds the rate over all possible verdicts on the other
    prompts.

    `first_share` is the share of verdicts, ties aside, that go to the answer shown first, with its
    95% interval: ½ means no position bias. `flipped` counts prompts with a in one order and b in
    the other.
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
    Cohen's `kappa` with its 95% bootstrap interval over prompts; kappa is NaN if both
    judges always give the same one verdict.
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
