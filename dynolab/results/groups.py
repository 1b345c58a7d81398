"""The rows of an evaluation by sampling, and of the test for lazy likelihood displacement."""

from __future__ import annotations

from pydantic import Field

from dynolab.data.encode import Encoded
from dynolab.data.rows import Row, Split


class PromptScore(Row):
    """Summary of a policy's sampled answers to one prompt: `prompts.jsonl`.

    `right`, `distinct` and `finished` count right answers, different texts, and answers that ended
    with end-of-sequence; `repeaters` those that repeat themselves (`Repetition`). `entropy` is the
    mean of −log π(y|x) over the samples, in nats, whose expectation is the entropy of whole
    answers; `tokens` is their mean length. In the world of two strategies `by_habit` and
    `by_other_way` count the answers that name each, rightly carried out or not.
    """

    id: str
    split: Split
    samples: int
    right: int
    distinct: int
    finished: int
    entropy: float
    tokens: float
    repeaters: int = 0
    by_habit: int | None = Field(None, exclude_if=lambda count: count is None)
    by_other_way: int | None = Field(None, exclude_if=lambda count: count is None)


class RightAnswer(Row):
    """A right answer that a policy gave, and its log-probability there in nats: `right.jsonl`."""

    id: str
    split: Split
    encoded: Encoded
    logp: float


class LikelihoodChange(Row):
    """Mean log-probability of one prompt's right answers before and after: `likelihood.jsonl`.

    The `answers` are samples of the policy before; in nats, summed over their tokens.
    """

    id: str
    split: Split
    answers: int
    before: float
    after: float

    @property
    def change(self) -> float:
        """Mean change over the answers."""
        return self.after - self.before


class QuestionDisplacement(Row):
    """Effect of one update on one question on its right answers: `displacement.jsonl`.

    `changes` are Δ log π of every right answer, in nats.
    """

    id: str
    samples: int
    changes: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean change over the right answers."""
        return sum(self.changes) / len(self.changes)


class TokenChoice(Row):
    """Tokens of one question's wrong answers that an advantage rule chose, beside those that do
    harm: `token_choice.jsonl`.

    Of the `wrong` tokens of wrong answers, `harmful` drag the right ones down to first order, in
    one gradient step of the objective before the rule; the rule pushes `chosen` of them less, and
    `both` are harmful and chosen. `harm`: what the harmful ones cost the right answers, in nats per
    unit of the learning rate, mean over right answers; `harm_chosen`: the chosen ones' part;
    `help_chosen`: what other chosen tokens would have lifted them by.
    """

    id: str
    wrong: int
    chosen: int
    harmful: int
    both: int
    harm: float
    harm_chosen: float
    help_chosen: float


class CompletionForce(Row):
    """What pushing one sampled answer did to its question's right answers: `completions.jsonl`.

    `force`: to first order, in one gradient step on the question, in nats per unit of the learning
    rate, mean over the right answers. `advantage`: the mean over its tokens, after the objective's
    rule. `entropy`: what the push did to the mean entropy of all tokens of the question's answers,
    in nats per unit of the learning rate; `entropy_rule`: what S of each token alone says of it, up
    to a factor (`EntropyForces`).
    """

    id: str
    correct: bool
    advantage: float
    tokens: int
    force: float
    entropy: float | None = Field(None, exclude_if=lambda nats: nats is None)
    entropy_rule: float | None = Field(None, exclude_if=lambda score: score is None)
