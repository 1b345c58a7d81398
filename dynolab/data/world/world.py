"""The built-in world: generated questions about facts, answered in a style with entropy.

Answers read `s s <fact> s s s .` with five style slots. Chosen answers draw each slot's word by a
Zipf preference and state the true value; rejected ones draw by the reversed preference and state a
wrong value. The base corpus holds plain statements with uniform slot words and questions followed
by word salad, and never a question with an answer in this form. So finetuning first lifts every
answer in the form, and only later separates chosen from rejected ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.data.rows import Example, spaced
from dynolab.data.world import lexicon
from dynolab.data.world.answers import Domain, answer_all
from dynolab.data.world.lexicon import ATTRIBUTES, SLOTS, Fact
from dynolab.data.world.probes import build_world_probes
from dynolab.data.world.rows import WorldRows
from dynolab.errors import ConfigError

SPARE_FACTS = 12
"""Least number of facts that no question asks for; format rephrases state them."""


class WorldConfig(BaseModel):
    """Sizes and seed of the world of facts."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    # Excluded at its default, so that results from before this field keep their keys.
    name: Literal["facts"] = Field(default="facts", exclude_if=lambda name: True)
    seed: int = Field(default=0, ge=0)
    entities: int = Field(
        default=72, ge=1, le=1000, description="Number of entities; each has three attributes."
    )
    train_pairs: int = Field(default=120, ge=2)
    heldout_pairs: int = Field(default=72, ge=2)
    corpus_rows: int = Field(
        default=4800, ge=8, description="Rows that the base model is trained on."
    )
    zipf: float = Field(
        default=1.5, ge=0, le=4, description="Exponent of the style preference; 0: no preference."
    )
    # Excluded at its default, so that results from before this field keep their keys.
    domain: Domain = Field(
        default="mixed",
        exclude_if=lambda domain: domain == "mixed",
        description="What is wrong with rejected answers: fact (helpful), style, both (mixed), or "
        "an insult (harmless).",
    )

    @model_validator(mode="after")
    def _enough_facts(self) -> WorldConfig:
        needed = self.train_pairs + self.heldout_pairs + SPARE_FACTS
        if self.entities * len(ATTRIBUTES) < needed:
            raise ConfigError(
                "world.entities",
                self.entities,
                f"the pairs and {SPARE_FACTS} spare facts need {needed} facts, "
                f"{len(ATTRIBUTES)} per entity; raise it to {-(-needed // len(ATTRIBUTES))}",
            )
        return self


@dataclass(frozen=True)
class World(WorldRows):
    """The world of facts: its rows, its words, and what is true in it."""

    config: WorldConfig
    truth: dict[tuple[str, str], str]

    def fact_of(self, text: str) -> Fact | None:
        """The one fact that a text states, in either template; None if it states none or several.

        True iff `world.truth[fact.entity, fact.attribute] == fact.value`.
        """
        entities = frozenset(entity for entity, _ in self.truth)
        facts = lexicon.facts_in(text, entities)
        return facts[0] if len(facts) == 1 else None

    def answer_of(self, example: Example) -> str:
        """The value that answers an example's question."""
        fact = self.fact_of(example.chosen)
        assert fact is not None, "every chosen answer of the world states its fact"
        return fact.value


def build_world(config: WorldConfig) -> World:
    """Generates the world; equal configs give equal rows, on every machine.

    Each part has its own stream of random numbers, so that changing a size or the style
    preference leaves the facts and the split as they were.
    """
    rng = _stream(config, "facts")
    entities = lexicon.names(config.entities, rng)
    facts = [
        Fact(entity, attribute, rng.choice(values))
        for entity in entities
        for attribute, values in ATTRIBUTES.items()
    ]
    rng.shuffle(facts)
    questions = config.train_pairs + config.heldout_pairs
    words = lexicon.vocabulary(entities)
    if config.domain == "harmless":
        words += lexicon.HARMS
    rng = _stream(config, "answers")
    zipf, domain = config.zipf, config.domain
    train = answer_all(facts[: config.train_pairs], "train", zipf, rng, domain)
    heldout = answer_all(facts[config.train_pairs : questions], "heldout", zipf, rng, domain)
    return World(
        config=config,
        truth={(fact.entity, fact.attribute): fact.value for fact in facts},
        corpus=_corpus(facts, questions, words, config),
        pairs=[pair.example for pair in train],
        heldout=[pair.example for pair in heldout],
        probes=build_world_probes(
            train, heldout, facts[questions:], words, _stream(config, "probes")
        ),
        words=words,
    )


def _stream(config: WorldConfig, part: str) -> random.Random:
    return random.Random(f"{config.seed}/{part}")


def _corpus(
    facts: Sequence[Fact], questions: int, words: Sequence[str], config: WorldConfig
) -> list[Example]:
    """Half questions with word salad, three eighths statements of facts, one eighth tales."""
    rng = _stream(config, "corpus")
    rows = []
    for number in range(config.corpus_rows):
        if number % 2:
            prompt = lexicon.question(rng.choice(facts[:questions]))
            text = lexicon.word_salad(words, rng)
        elif number % 8:
            prompt = lexicon.STATEMENT_PROMPT
            phrase = lexicon.plain_words if rng.random() < 0.5 else lexicon.rephrased_words
            text = lexicon.answer(phrase(rng.choice(facts)), [rng.choice(slot) for slot in SLOTS])
        else:
            prompt, text = lexicon.STATEMENT_PROMPT, lexicon.tale(rng)
        rows.append(Example(id=f"base-{number:05d}", prompt=prompt, chosen=spaced(text)))
    return rows
