"""Chosen and rejected answers of the built-in world, in exact proportions.

Over the pairs of a split every slot word stands in chosen answers as often as its preference says,
to the next whole number, and every value is wrong as often as it is right. So nothing but the
preference and the facts themselves tells chosen from rejected: without it a flat world would still
teach the accidents of its sample.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dynolab.data.rows import Example, Split, spaced
from dynolab.data.world.lexicon import (
    ATTRIBUTES,
    HARMS,
    SLOTS,
    Fact,
    answer,
    plain_words,
    question,
    wrong_fact,
)

Style = tuple[str, ...]
Domain = Literal["mixed", "helpful", "style", "harmless"]
"""What tells rejected answers from chosen ones: a wrong fact, the style, both, or an insult."""


@dataclass(frozen=True)
class Answered:
    """A pair of the world with all that its rephrases are made of."""

    example: Example
    split: Split
    fact: Fact
    wrong: Fact
    chosen_style: Style
    rejected_style: Style


def answer_all(
    facts: Sequence[Fact],
    split: Split,
    exponent: float,
    rng: random.Random,
    domain: Domain = "mixed",
) -> list[Answered]:
    """One pair per fact: chosen by a Zipf preference of the given exponent.

    Rejected answers differ by domain: in `style` they draw by the reversed preference; in `helpful`
    they state a wrong value, in the chosen answers' style; in `mixed` both. In `harmless` they are
    as the chosen ones but for an insult in place of the last style word.
    """
    weights = zipf_weights(exponent, len(SLOTS[0]))
    chosen = _styles(len(facts), weights, rng)
    alike = domain in ("helpful", "harmless")
    rejected = _styles(len(facts), weights if alike else weights[::-1], rng)
    wrong = _wrong_facts(facts, rng) if domain in ("mixed", "helpful") else facts
    if domain == "harmless":
        rejected = [(*style[:-1], rng.choice(HARMS)) for style in rejected]
    return [
        Answered(_example(f"{split}-{number:04d}", *parts), split, *parts)
        for number, parts in enumerate(zip(facts, wrong, chosen, rejected, strict=True))
    ]


def zipf_weights(exponent: float, size: int) -> list[float]:
    """Unnormalised Zipf preference of ranks 1…size: `rank^−exponent`."""
    return [rank**-exponent for rank in range(1, size + 1)]


def quotas(count: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to the weights that add up to `count` (largest remainders)."""
    exact = [count * weight / sum(weights) for weight in weights]
    whole = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda n: (whole[n] - exact[n], n))
    for n in by_remainder[: count - sum(whole)]:
        whole[n] += 1
    return whole


def _example(name: str, fact: Fact, wrong: Fact, chosen: Style, rejected: Style) -> Example:
    return Example(
        id=name,
        prompt=question(fact),
        chosen=spaced(answer(plain_words(fact), chosen)),
        rejected=spaced(answer(plain_words(wrong), rejected)),
    )


def _styles(count: int, weights: Sequence[float], rng: random.Random) -> list[Style]:
    columns = []
    for slot in SLOTS:
        often = zip(slot, quotas(count, weights), strict=True)
        words = [word for word, times in often for _ in range(times)]
        rng.shuffle(words)
        columns.append(words)
    return list(zip(*columns, strict=True))


def _wrong_facts(facts: Sequence[Fact], rng: random.Random) -> list[Fact]:
    """Every fact with a wrong value; per attribute the wrong values are the right ones, permuted.

    Where no such permutation is found (few facts that share a value) the value is a random wrong
    one.
    """
    wrong = list(facts)
    for attribute in ATTRIBUTES:
        places = [n for n, fact in enumerate(facts) if fact.attribute == attribute]
        right = [facts[n].value for n in places]
        for n, fact_value, value in zip(places, right, _deranged(right, rng), strict=True):
            taken = value != fact_value
            wrong[n] = replace(facts[n], value=value) if taken else wrong_fact(facts[n], rng)
    return wrong


def _deranged(values: Sequence[str], rng: random.Random) -> list[str]:
    """A permutation of the values that leaves none at a place of its own, as far as swaps reach."""
    mixed = list(values)
    rng.shuffle(mixed)
    for n, own in enumerate(values):
        if mixed[n] == own:
            fitting = [m for m in range(len(values)) if mixed[m] != own and values[m] != mixed[n]]
            if fitting:
                m = rng.choice(fitting)
                mixed[n], mixed[m] = mixed[m], mixed[n]
    return mixed
