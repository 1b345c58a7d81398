"""Repeaters: how much a generation repeats itself, and how alike generations are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from dynolab.results.study import Repetition

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
    return Counter(
        tuple(tokens[start : start + n])
        for tokens in generations
        for start in range(len(tokens) - n + 1)
    )
