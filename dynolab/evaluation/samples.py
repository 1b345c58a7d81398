"""Evaluates a policy's samples: result rows from answers and their rewards."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from dynolab.data.encode import Encoded
from dynolab.data.rows import Split
from dynolab.evaluation.repeats import repetition
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.results.groups import LikelihoodChange, PromptScore, RightAnswer
from dynolab.training.reference import score_responses
from dynolab.training.rollout import Answers

EVALUATION = 2**31
"""First step number for the random draws of evaluations, beyond that of any training."""


def score_prompt(answers: Answers, split: Split, right_from: float) -> PromptScore:
    """Counts of one prompt's samples; an answer is right if its reward is at least `right_from`."""
    sampled = answers.sampled
    return PromptScore(
        id=answers.id,
        split=split,
        samples=len(sampled),
        right=sum(reward >= right_from for reward in answers.rewards),
        distinct=len({sample.text.strip() for sample in sampled}),
        finished=sum(sample.finished for sample in sampled),
        entropy=-sum(sum(sample.logps) for sample in sampled) / len(sampled),
        tokens=sum(len(sample.response) for sample in sampled) / len(sampled),
        repeaters=sum(
            repetition(sample.response[: -1 if sample.finished else None]).repeater
            for sample in sampled
        ),
    )


def right_answers(
    logits: ResponseLogits,
    answers: Sequence[tuple[Answers, Split]],
    right_from: float,
    *,
    pad_id: int,
    batch: int,
    temperature: float,
) -> list[RightAnswer]:
    """The right samples with their log-probabilities, prompt by prompt.

    **Arguments:** `batch`: sequences per forward.
    """
    right = [
        (group.id, split, sample.encoded)
        for group, split in answers
        for sample, reward in zip(group.sampled, group.rewards, strict=True)
        if reward >= right_from
    ]
    logps = score_answers(
        logits,
        [encoded for *_, encoded in right],
        pad_id=pad_id,
        batch=batch,
        temperature=temperature,
    )
    return [
        RightAnswer(id=name, split=split, encoded=encoded, logp=logp)
        for (name, split, encoded), logp in zip(right, logps, strict=True)
    ]


def likelihood_changes(
    logits: ResponseLogits,
    before: Sequence[RightAnswer],
    *,
    pad_id: int,
    batch: int,
    temperature: float,
) -> list[LikelihoodChange]:
    """Changes in the likelihood of an earlier policy's right answers, prompt by prompt.

    For samples y of the earlier policy π₀, the mean of log π(y) − log π₀(y) over *all* answers is
    −KL(π₀‖π): any change lowers it. Over right answers alone it rises with their probability, and
    falls if a few of them take it all.
    """
    after = score_answers(
        logits,
        [answer.encoded for answer in before],
        pad_id=pad_id,
        batch=batch,
        temperature=temperature,
    )
    pairs = zip(before, after, strict=True)
    changes = []
    for (name, split), group in groupby(pairs, key=lambda pair: (pair[0].id, pair[0].split)):
        rows = list(group)
        changes.append(
            LikelihoodChange(
                id=name,
                split=split,
                answers=len(rows),
                before=sum(answer.logp for answer, _ in rows) / len(rows),
                after=sum(logp for _, logp in rows) / len(rows),
            )
        )
    return changes


def score_answers(
    logits: ResponseLogits,
    sequences: Sequence[Encoded],
    *,
    pad_id: int,
    batch: int,
    temperature: float,
) -> list[float]:
    """log π(y|x) of each sequence's response, in nats."""
    logps = score_responses(logits, sequences, pad_id, batch, temperature=temperature)
    return [float(logp.double().sum()) for logp in logps]
