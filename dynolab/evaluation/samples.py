"""Evaluates a policy's samples: rows from answers and their rewards, and how much they repeat."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from dynolab.data.encode import Encoded
from dynolab.data.rows import Split
from dynolab.data.world.strategies import HABIT, OTHER, ways
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.results.groups import LikelihoodChange, PromptScore, RightAnswer
from dynolab.results.study import Repetition
from dynolab.training.reference import score_responses
from dynolab.training.rollout import Answers

SHORTEST, PART = 6, 3
"""An answer of `SHORTEST` tokens or more is a repeater if its longest repeat is 1/`PART` of it."""


def repetition(tokens: Sequence[int]) -> Repetition:
    """How much one generation repeats itself.

    **Arguments:** `tokens`: the sampled tokens, without end-of-sequence.
    """
    longest = longest_repeat(tokens)
    return Repetition(
        tokens=len(tokens),
        distinct_1=distinct([tokens], 1),
        distinct_2=distinct([tokens], 2),
        distinct_3=distinct([tokens], 3),
        longest_repeat=longest,
        entropy=frequency_entropy([tokens]),
        repeater=len(tokens) >= SHORTEST and PART * longest >= len(tokens),
    )


def distinct(generations: Iterable[Sequence[int]], n: int) -> float:
    """Distinct-n: different n-grams over all n-grams of all generations (arXiv 1510.03055, §5.2).

    It falls as texts grow: compare generations of one length. 1 where there is no n-gram.
    """
    grams = _grams(generations, n)
    total = sum(grams.values())
    return len(grams) / total if total else 1.0


def frequency_entropy(generations: Iterable[Sequence[int]]) -> float:
    """`−Σ f log f` over the frequencies f of the generations' tokens, in nats."""
    grams = _grams(generations, 1)
    total = sum(grams.values())
    return math.fsum(-count / total * math.log(count / total) for count in grams.values())


def longest_repeat(tokens: Sequence[int]) -> int:
    """Length of the longest run of tokens that occurs in the text twice; the two may overlap.

    A loop of period p over n tokens has n − p. O(n²): with r(i, j) the common run that ends at
    tokens i < j, r(i, j) = r(i − 1, j − 1) + 1 where they are equal, else 0.
    """
    longest, before = 0, [0] * (len(tokens) + 1)
    for j, token in enumerate(tokens):
        runs = [0] * (len(tokens) + 1)
        for i in range(j):
            if tokens[i] == token:
                runs[i + 1] = before[i] + 1
        longest = max(longest, max(runs))
        before = runs
    return longest


def _grams(generations: Iterable[Sequence[int]], n: int) -> Counter[tuple[int, ...]]:
    grams: Counter[tuple[int, ...]] = Counter()
    for tokens in generations:
        grams.update(tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))
    return grams


EVALUATION = 2**31
"""First step number for the random draws of evaluations, beyond that of any training."""


def score_prompt(answers: Answers, split: Split, right_from: float) -> PromptScore:
    """Counts of one prompt's samples; an answer is right if its reward is at least `right_from`."""
    sampled = answers.sampled
    texts: set[str] = set()
    finished = repeaters = tokens = 0
    logp = 0.0
    for sample in sampled:
        texts.add(sample.text.strip())
        finished += sample.finished
        tokens += len(sample.response)
        logp += sum(sample.logps)
        without_end = sample.response[:-1] if sample.finished else sample.response
        repeaters += repetition(without_end).repeater
    by_way = ways(answers.prompt, [sample.text for sample in sampled])
    return PromptScore(
        id=answers.id,
        split=split,
        samples=len(sampled),
        right=sum(reward >= right_from for reward in answers.rewards),
        distinct=len(texts),
        finished=finished,
        entropy=-logp / len(sampled),
        tokens=tokens / len(sampled),
        repeaters=repeaters,
        by_habit=by_way.get(HABIT),
        by_other_way=by_way.get(OTHER),
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
    places: list[tuple[str, Split]] = []
    sequences: list[Encoded] = []
    for group, split in answers:
        for sample, reward in zip(group.sampled, group.rewards, strict=True):
            if reward >= right_from:
                places.append((group.id, split))
                sequences.append(sample.encoded)
    logps = score_answers(logits, sequences, pad_id=pad_id, batch=batch, temperature=temperature)
    right = []
    for (name, split), encoded, logp in zip(places, sequences, logps, strict=True):
        right.append(RightAnswer(id=name, split=split, encoded=encoded, logp=logp))
    return right


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
    sequences = [answer.encoded for answer in before]
    after = score_answers(logits, sequences, pad_id=pad_id, batch=batch, temperature=temperature)
    old: dict[tuple[str, Split], list[float]] = {}
    new: dict[tuple[str, Split], list[float]] = {}
    for answer, logp in zip(before, after, strict=True):
        prompt = answer.id, answer.split
        old.setdefault(prompt, []).append(answer.logp)
        new.setdefault(prompt, []).append(logp)
    changes = []
    for name, split in old:
        then, now = old[name, split], new[name, split]
        change = LikelihoodChange(
            id=name,
            split=split,
            answers=len(then),
            before=sum(then) / len(then),
            after=sum(now) / len(now),
        )
        changes.append(change)
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
