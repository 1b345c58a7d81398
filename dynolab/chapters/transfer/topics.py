"""Texts on one topic each, generated from vocabularies: fields of life, and topics in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from pydantic import BaseModel, ConfigDict, Field


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIELDS: dict[str, tuple[str, ...]] = {
    "sport": _words("team coach score win season player league match training fans record"),
    "kitchen": _words("recipe taste fresh spoon dish salt heat minutes serve bowl hungry"),
    "science": _words("theory measure data sample result model study error test scale paper"),
    "money": _words("price pay account cost bank interest rate contract euro risk offer"),
}
"""Words that all topics of a field share."""

TOPICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "football": ("sport", _words("goal striker penalty corner pitch keeper offside tackle")),
    "tennis": ("sport", _words("racket ace set volley court backhand umpire deuce")),
    "swimming": ("sport", _words("pool lane stroke dive relay goggles butterfly lap")),
    "baking": ("kitchen", _words("flour oven dough yeast crust cake sugar butter")),
    "grilling": ("kitchen", _words("charcoal steak smoke rib marinade flame skewer tongs")),
    "brewing": ("kitchen", _words("hops malt barrel foam ferment bottle lager cellar")),
    "astronomy": ("science", _words("star orbit planet telescope comet galaxy lens dust")),
    "biology": ("science", _words("cell gene protein tissue species enzyme leaf nerve")),
    "chemistry": ("science", _words("acid reaction catalyst bond ion solvent flask powder")),
    "insurance": ("money", _words("claim policy premium damage cover accident insurer loss")),
    "housing": ("money", _words("rent tenant flat deposit landlord lease roof garden")),
    "trading": ("money", _words("share broker market stock index trend dividend ticker")),
}
"""Every topic with its field and its own words, the commonest first."""

COMMON = _words(
    "the a and of to in is was that with for on it as but from they have more this when about "
    "said very then over after some new long"
)
"""Words common to all texts."""

_OWN, _FIELD, _OTHER = 0.15, 0.25, 0.15
"""Shares of a text's words: of its topic, of its field, of any other topic."""


class TopicConfig(BaseModel):
    """Settings of generated texts."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    texts: int = Field(2_400, ge=20, description="Number of texts.")
    words: int = Field(24, ge=1, description="Number of words of a text.")
    vocabulary: int = Field(
        400, ge=2, description="Number of words that are counted, the commonest of all texts."
    )
    seed: int = Field(0, ge=0, description="Seed of the texts.")


def generate(config: TopicConfig) -> tuple[list[list[str]], Int[ndarray, " texts"]]:
    """Generates texts as lists of words, on the topics in turn, and the number of each one's topic.

    A word is one of the topic's own by Zipf's law (15%), one of the topic's field (25%), one of any
    other topic (15%), or a common one: a text shows its field clearly and its topic faintly.
    """
    rng, names = np.random.default_rng(config.seed), tuple(TOPICS)
    labels = np.arange(config.texts) % len(names)
    return [_text(names[label], config.words, rng) for label in labels], labels


def _text(topic: str, length: int, rng: np.random.Generator) -> list[str]:
    field, own = TOPICS[topic]
    others = [name for name in TOPICS if name != topic]
    zipf = 1 / np.arange(1, len(own) + 1)
    zipf /= zipf.sum()
    text = []
    for draw in rng.random(length):
        if draw < _OWN:
            text.append(own[rng.choice(len(own), p=zipf)])
        elif draw < _OWN + _FIELD:
            text.append(_pick(FIELDS[field], rng))
        elif draw < _OWN + _FIELD + _OTHER:
            text.append(_pick(TOPICS[_pick(others, rng)][1], rng))
        else:
            text.append(_pick(COMMON, rng))
    return text


def _pick(words: Sequence[str], rng: np.random.Generator) -> str:
    return words[int(rng.integers(len(words)))]


def vocabulary(texts: Sequence[Sequence[str]], size: int) -> dict[str, int]:
    """The commonest words and their columns; equally common ones in alphabetical order."""
    counts = Counter(word for text in texts for word in text)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {word: place for place, (word, _) in enumerate(ranked[:size])}


def bags(
    texts: Sequence[Sequence[str]], places: dict[str, int]
) -> Float[ndarray, "texts vocabulary"]:
    """Counts of vocabulary words, each text scaled to length one; zero for a text without any."""
    counts = np.zeros((len(texts), len(places)), dtype=np.float32)
    for row, text in enumerate(texts):
        for word in text:
            if word in places:
                counts[row, places[word]] += 1
    sizes = np.linalg.norm(counts, axis=1, keepdims=True)
    return counts / np.where(sizes > 0, sizes, 1)
