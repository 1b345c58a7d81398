"""Chosen and rejected answers of the built-in world, in exact proportions, and its probes.

Over the pairs of a split, chosen answers use every slot word in proportion to its preference,
rounded to whole numbers, and every value is wrong as often as it is right. So chosen and rejected
answers differ by the preference and the facts alone: with independent draws, even a world without a
preference would teach the accidents of its sample.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dynolab.data.probes.build import other, shuffled
from dynolab.data.rows import Example, ProbeRow, Split, spaced
from dynolab.data.world import lexicon
from dynolab.data.world.lexicon import (
    ATTRIBUTES,
    HARMS,
    SLOTS,
    Fact,
    answer,
    plain_words,
    question,
    rephrased_words,
    short_words,
    wrong_fact,
)

Style = tuple[str, ...]
Domain = Literal["mixed", "helpful", "style", "harmless"]
"""How rejected answers differ from chosen ones: fact and style, fact, style, or an insult."""


@dataclass(frozen=True)
class Answered:
    """A pair of the world, with the facts and styles that its rephrases are made from."""

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
    """One pair per fact; chosen answers draw their style by a Zipf preference of the exponent.

    Rejected answers depend on the domain. `style`: they draw by the reversed preference.
    `helpful`: they state a wrong value and draw like chosen ones. `mixed`: both. `harmless`: they
    are like chosen ones, with an insult in place of the last style word.
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
    """Whole numbers that add up to `count`, in proportion to weights (largest remainders)."""
    exact = [count * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda n: (counts[n] - exact[n], n))
    for n in by_remainder[: count - sum(counts)]:
        counts[n] += 1
    return counts


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
        words: list[str] = []
        for word, times in zip(slot, quotas(count, weights), strict=True):
            words += [word] * times
        rng.shuffle(words)
        columns.append(words)
    return list(zip(*columns, strict=True))


def _wrong_facts(facts: Sequence[Fact], rng: random.Random) -> list[Fact]:
    """Every fact with a wrong value; per attribute the wrong values are the right ones, permuted.

    Where no such permutation is found (few facts with equal values), the value is a random wrong
    one.
    """
    wrong = list(facts)
    for attribute in ATTRIBUTES:
        places = [n for n, fact in enumerate(facts) if fact.attribute == attribute]
        right = [facts[n].value for n in places]
        for n, fact_value, value in zip(places, right, _deranged(right, rng), strict=True):
            if value != fact_value:
                wrong[n] = replace(facts[n], value=value)
            else:
                wrong[n] = wrong_fact(facts[n], rng)
    return wrong


def _deranged(values: Sequence[str], rng: random.Random) -> list[str]:
    """A random permutation in which no place keeps its value, as far as swaps can achieve it."""
    mixed = list(values)
    rng.shuffle(mixed)
    for n, value in enumerate(values):
        if mixed[n] == value:
            fitting = [m for m in range(len(values)) if mixed[m] != value and values[m] != mixed[n]]
            if fitting:
                m = rng.choice(fitting)
                mixed[n], mixed[m] = mixed[m], mixed[n]
    return mixed


MADE_BY = {
    "chosen": "the data",
    "rejected": "the data",
    "chosen_initial": "a random value, in the form in which the base corpus answers questions",
    "chosen_gptsemantic": "the chosen fact in the other template, with other words in every slot",
    "reject_gptsemantic": "the rejected fact in the other template, with other words in every slot",
    "chosen_gptformat": "the chosen answer's form and style, stating a fact that no pair asks for",
    "reject_gptformat": "the rejected answer's form and style, with a wrong value of such a fact",
    "irr_train": "chosen answer of another training pair",
    "irr_test": "chosen answer of another held-out pair",
    "irr_hum": "a tale of the base corpus's grammar",
    "random_permute": "words of the chosen answer, shuffled",
    "random_nonhum": "words of irr_test, shuffled",
}
"""How each kind is made. `chosen_selfr` is absent: only a sampled model can rephrase itself."""


def build_world_probes(
    train: Sequence[Answered],
    heldout: Sequence[Answered],
    spare: Sequence[Fact],
    rng: random.Random,
) -> list[ProbeRow]:
    """Probe rows of all pairs, pair by pair, with kinds in the order of `MADE_BY`."""
    trained, untrained = ([pair.example for pair in part] for part in (train, heldout))
    rows = []
    for pair in (*train, *heldout):
        irr_test = _another(untrained, pair.example, rng)
        unasked = rng.choice(spare)
        texts = {
            "chosen": pair.example.chosen,
            "rejected": str(pair.example.rejected),
            "chosen_initial": " ".join([*short_words(_any_value(pair.fact, rng)), "."]),
            "chosen_gptsemantic": answer(
                rephrased_words(pair.fact), _other_style(pair.chosen_style, rng)
            ),
            "reject_gptsemantic": answer(
                rephrased_words(pair.wrong), _other_style(pair.rejected_style, rng)
            ),
            "chosen_gptformat": answer(plain_words(unasked), pair.chosen_style),
            "reject_gptformat": answer(
                plain_words(
                    lexicon.wrong_fact(unasked, rng) if pair.wrong != pair.fact else unasked
                ),
                pair.rejected_style,
            ),
            "irr_train": _another(trained, pair.example, rng),
            "irr_test": irr_test,
            "irr_hum": lexicon.tale(rng),
            "random_permute": shuffled(pair.example.chosen, rng),
            "random_nonhum": shuffled(irr_test, rng),
        }
        rows += [
            ProbeRow(
                pair_id=pair.example.id,
                split=pair.split,
                kind=kind,
                prompt=pair.example.prompt,
                response=spaced(text),
                made_by=MADE_BY[kind],
            )
            for kind, text in texts.items()
        ]
    return rows


def _another(examples: Sequence[Example], than: Example, rng: random.Random) -> str:
    example = other(examples, than, rng)
    assert example is not None  # a world asks two questions at least
    return example.chosen


def _any_value(fact: Fact, rng: random.Random) -> Fact:
    return replace(fact, value=rng.choice(lexicon.ATTRIBUTES[fact.attribute][: lexicon.HELD]))


def _other_style(style: Sequence[str], rng: random.Random) -> tuple[str, ...]:
    return tuple(
        rng.choice([word for word in slot if word != used])
        for slot, used in zip(SLOTS, style, strict=True)
    )
