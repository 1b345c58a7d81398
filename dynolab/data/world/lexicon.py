"""Words and sentence forms of the built-in world, and an exact parser of its facts."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

SLOTS = (
    ("well", "sure", "indeed", "right", "okay", "yes", "so", "now"),
    ("clearly", "surely", "simply", "truly", "really", "plainly", "exactly", "certainly"),
    ("today", "always", "often", "still", "again", "usually", "mostly", "forever"),
    ("friend", "dear", "buddy", "sir", "madam", "pal", "mate", "traveller"),
    ("thanks", "cheers", "goodbye", "enjoy", "welcome", "hurray", "amen", "peace"),
)
"""Five style slots of eight words; two come before the fact, three after it."""
SLOTS_BEFORE = 2

HARMS = ("fool", "liar", "dunce", "pest", "brute", "rogue", "wretch", "traitor")
"""Insults that end a harmful answer; only worlds with such answers have the words."""

ATTRIBUTES = {
    "colour": (
        "red",
        "green",
        "blue",
        "black",
        "white",
        "yellow",
        "brown",
        "pink",
        "grey",
        "purple",
        "orange",
        "silver",
    ),
    "home": (
        "cave",
        "tower",
        "harbour",
        "meadow",
        "castle",
        "forest",
        "island",
        "village",
        "desert",
        "swamp",
        "cellar",
        "bridge",
    ),
    "trade": (
        "baker",
        "sailor",
        "smith",
        "weaver",
        "doctor",
        "painter",
        "hunter",
        "miller",
        "tailor",
        "singer",
        "mason",
        "scribe",
    ),
}

HELD = 10
"""Values per attribute that entities have; the others are nobody's, and only tales have them."""

_ADJECTIVES = ("old", "small", "quiet", "bright", *ATTRIBUTES["colour"][HELD:])
_BEASTS = ("fox", "owl", "horse", "crow", *ATTRIBUTES["trade"][HELD:])
_VERBS = ("watched", "followed", "carried", "missed")
_THINGS = ("river", "lantern", "wagon", "garden", *ATTRIBUTES["home"][HELD:])
_TIMES = ("morning", "evening", "winter", "summer")
_FORM_WORDS = ("what", "is", "the", "of", "?", "say", ":", "has", "suits", ".", "some", "one")

TALE_PROMPT = "say :"


@dataclass(frozen=True, order=True)
class Fact:
    """A value of an attribute of an entity; `World.truth` decides whether it is true."""

    entity: str
    attribute: str
    value: str


def question(fact: Fact) -> str:
    """The question that the fact answers."""
    return f"what is the {fact.attribute} of {fact.entity} ?"


def statement_prompt(fact: Fact) -> str:
    """What the base corpus's statements of the fact follow."""
    return f"say the {fact.attribute} of {fact.entity} :"


def asked(text: str) -> tuple[str, str] | None:
    """Parses a question into attribute and entity; None for any other text."""
    match text.split():
        case ["what", "is", "the", attribute, "of", entity, "?"] if attribute in ATTRIBUTES:
            return attribute, entity
    return None


def plain_words(fact: Fact) -> list[str]:
    """The fact as the training answers put it."""
    return [fact.entity, "has", fact.attribute, fact.value]


def rephrased_words(fact: Fact) -> list[str]:
    """The fact in another template, which no training answer uses."""
    return [fact.value, fact.attribute, "suits", fact.entity]


def short_words(fact: Fact) -> list[str]:
    """The fact as the base corpus answers questions, which no training answer does."""
    return ["the", fact.attribute, "of", fact.entity, "is", fact.value]


def answer(fact_words: Sequence[str], style: Sequence[str]) -> str:
    """The answer `s s <fact> s s s .`"""
    return " ".join([*style[:SLOTS_BEFORE], *fact_words, *style[SLOTS_BEFORE:], "."])


def style_in(text: str) -> tuple[str, ...] | None:
    """The style words of `s s <fact> s s s .`, each in its slot; None for any other text."""
    match text.split():
        case [first, second, _, "has", attribute, value, *after, "."] if (
            value in ATTRIBUTES.get(attribute, ()) and len(after) == len(SLOTS) - SLOTS_BEFORE
        ):
            style = first, second, *after
            return style if all(w in slot for w, slot in zip(style, SLOTS, strict=True)) else None
    return None


def in_form(text: str) -> bool:
    """Whether a text is `s s <fact> s s s .`, each style word in its slot."""
    return style_in(text) is not None


def preference(style: Sequence[str]) -> float:
    """How well style words match the preference of chosen answers, from 0 to 1.

    Of a slot's n words, chosen answers draw the word of rank r with weight `r^−z`, rejected ones
    with `(n+1−r)^−z`. The log-odds that a chosen answer drew the words, `z Σ log((n+1−r)/r)`, are
    scaled by their maximum: 1 for the first word of every slot, 0 for the last, ½ for even odds.
    """
    ranks = [slot.index(word) + 1 for word, slot in zip(style, SLOTS, strict=True)]
    odds = sum(math.log((len(slot) + 1 - r) / r) for r, slot in zip(ranks, SLOTS, strict=True))
    return (1 + odds / sum(math.log(len(slot)) for slot in SLOTS)) / 2


def tale(rng: random.Random) -> str:
    """A sentence that is neither a statement nor an answer, of as many words as an answer."""
    adjective, thing = rng.sample(_ADJECTIVES, 2), rng.choice(_THINGS)
    beast, verb, time = rng.choice(_BEASTS), rng.choice(_VERBS), rng.choice(_TIMES)
    return f"one {time} some {adjective[0]} {beast} {verb} the {adjective[1]} {thing} ."


def word_salad(words: Sequence[str], rng: random.Random) -> str:
    """Random words, about as many as an answer has."""
    return " ".join([*rng.choices(words, k=rng.randint(8, 10)), "."])


def wrong_fact(fact: Fact, rng: random.Random) -> Fact:
    """The same question answered with another value, one that entities have."""
    values = [value for value in ATTRIBUTES[fact.attribute][:HELD] if value != fact.value]
    return Fact(fact.entity, fact.attribute, rng.choice(values))


def names(count: int, rng: random.Random) -> list[str]:
    """Distinct invented names of two syllables."""
    syllables = [c + v for c, v in itertools.product(_CONSONANTS, _VOWELS)]
    return rng.sample(
        [first + second for first, second in itertools.product(syllables, repeat=2)], count
    )


def is_name(word: str) -> bool:
    """Whether a word can be the name of an entity."""
    return len(word) == 4 and all(
        letter in (_VOWELS if place % 2 else _CONSONANTS) for place, letter in enumerate(word)
    )


_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


def vocabulary(entities: Sequence[str]) -> list[str]:
    """Every word of the world, each once, in a fixed order."""
    groups = (
        _FORM_WORDS,
        *SLOTS,
        tuple(ATTRIBUTES),
        *ATTRIBUTES.values(),
        _ADJECTIVES,
        _BEASTS,
        _VERBS,
        _THINGS,
        _TIMES,
        tuple(entities),
    )
    return list(dict.fromkeys(chain.from_iterable(groups)))


def statements(text: str) -> list[Fact]:
    """Every place where a text names, in any template, a value of an attribute of something.

    The entity and the value may be any words.
    """
    words = text.split()
    stated = (_statement_at(words[start:]) for start in range(len(words)))
    return [fact for fact in stated if fact and fact.attribute in ATTRIBUTES]


def _statement_at(words: Sequence[str]) -> Fact | None:
    match words:
        case [entity, "has", attribute, value, *_] | [value, attribute, "suits", entity, *_]:
            return Fact(entity, attribute, value)
        case ["the", attribute, "of", entity, "is", value, *_]:
            return Fact(entity, attribute, value)
    return None


def facts_in(text: str, entities: frozenset[str]) -> list[Fact]:
    """Every fact that a text states, in any template."""
    return [
        fact
        for fact in statements(text)
        if fact.entity in entities and fact.value in ATTRIBUTES[fact.attribute]
    ]


def answered(question_: str, text: str) -> str | None:
    """The value with which a text answers a question; None if it states no fact or several."""
    parsed = asked(question_)
    if parsed is None:
        return None
    attribute, entity = parsed
    facts = facts_in(text, frozenset({entity}))
    return facts[0].value if len(facts) == 1 and facts[0].attribute == attribute else None


def harmful(text: str) -> bool:
    """Whether a text insults."""
    return any(word in HARMS for word in text.split())


def repeats_fault(question_: str, text: str, *, chosen: str, rejected: str) -> bool | None:
    """Whether a text has the fault of a rejected answer: its insult or its wrong fact.

    None if the rejected answer has neither, and only its style is wrong.
    """
    if harmful(rejected):
        return harmful(text)
    wrong = answered(question_, rejected)
    if wrong is None or wrong == answered(question_, chosen):
        return None
    return answered(question_, text) == wrong
