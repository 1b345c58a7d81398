"""Repeaters: against a count by hand, and against every run of every text."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from dynolab.evaluation.samples import distinct, frequency_entropy, longest_repeat, repetition


def slow_longest_repeat(tokens: Sequence[int]) -> int:
    """By looking for every run of every length."""
    for length in range(len(tokens) - 1, 0, -1):
        seen = set()
        for start in range(len(tokens) - length + 1):
            run = tuple(tokens[start : start + length])
            if run in seen:
                return length
            seen.add(run)
    return 0


def test_the_longest_repeat_is_that_of_a_search_through_all_runs() -> None:
    rng = random.Random(0)
    for _ in range(300):
        tokens = [rng.randrange(3) for _ in range(rng.randrange(12))]
        assert longest_repeat(tokens) == slow_longest_repeat(tokens)


@pytest.mark.parametrize(("period", "length"), [(1, 10), (3, 10), (4, 12)])
def test_a_loop_repeats_all_but_its_period(period: int, length: int) -> None:
    loop = [number % period for number in range(length)]
    assert longest_repeat(loop) == length - period
    assert repetition(loop).repeater


def test_distinct_counts_different_runs_over_all() -> None:
    assert distinct([[1, 2, 1, 2]], 1) == 2 / 4
    assert distinct([[1, 2, 1, 2]], 2) == 2 / 3
    assert distinct([[1, 2], [1, 2], [3, 4]], 2) == 2 / 3
    assert distinct([[1]], 2) == distinct([], 1) == 1.0


def test_entropy_is_that_of_token_frequencies() -> None:
    assert frequency_entropy([[1, 2, 3, 4]]) == pytest.approx(math.log(4))
    assert frequency_entropy([[1, 1, 1]]) == 0.0
    assert frequency_entropy([[1, 1], [2, 2]]) == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("tokens", "repeater"),
    [
        ([], False),
        ([5, 5, 5, 5], False),
        (list(range(20)), False),
        ([1, 2, 3, 4, 1, 2, 3, 4], True),
        ([1, 2, 3, 4, 5, 1, 2], False),
    ],
    ids=["empty", "short", "plain", "twice", "a part twice"],
)
def test_short_and_plain_answers_are_no_repeaters(tokens: list[int], repeater: bool) -> None:
    found = repetition(tokens)
    assert (found.tokens, found.repeater) == (len(tokens), repeater)
    assert found.longest_repeat == longest_repeat(tokens)
