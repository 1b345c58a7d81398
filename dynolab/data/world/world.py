"""The built-in worlds by name, and the world of facts: questions, answered in a style with entropy.

Answers read `s s <fact> s s s .` with five style slots. Chosen answers draw each slot's word by a
Zipf preference and state the true value; rejected ones draw by the reversed preference and state a
wrong value, another entity's. The base corpus states a share of the facts, in three templates and
with uniform slot words, and answers questions that no pair asks, in short and without style words.
Other questions word salad follows, so that before finetuning no answer is very unlikely. So the
base model knows facts, and can be asked; finetuning first lifts every answer in the form,
and only later separates chosen from rejected ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from dynolab.data.rows import Example, spaced
from dynolab.data.world import lexicon
from dynolab.data.world.answers import Domain, answer_all, build_world_probes
from dynolab.data.world.lexicon import ATTRIBUTES, HELD, SLOTS, Fact
from dynolab.data.world.rows import WorldRows
from dynolab.data.world.strategies import StrategiesConfig, build_strategies
from dynolab.data.world.sums import SumsConfig, build_sums
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
        default=96, ge=1, le=1000, description="Number of entities; each has three attributes."
    )
    train_pairs: int = Field(default=120, ge=2)
    heldout_pairs: int = Field(default=72, ge=2)
    corpus_rows: int = Field(
        default=16_000, ge=8, description="Rows that the base model is trained on."
    )
    known: float = Field(
        default=0.6,
        ge=0.1,
        le=1,
        description="Share of the facts that the base corpus states; the others nobody can know.",
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
    """The world of facts: its rows, its words, what is true in it, and what its corpus states."""

    config: WorldConfig
    truth: dict[tuple[str, str], str]
    known: frozenset[Fact]

    def fact_of(self, text: str) -> Fact | None:
        """The one fact that a text states, in any template; None if it states none or several.

        True iff `world.truth[fact.entity, fact.attribute] == fact.value`.
        """
        facts = lexicon.facts_in(text, frozenset(entity for entity, _ in self.truth))
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
        Fact(entity, attribute, rng.choice(values[:HELD]))
        for entity in entities
        for attribute, values in ATTRIBUTES.items()
    ]
    rng.shuffle(facts)
    questions = config.train_pairs + config.heldout_pairs
    words = lexicon.vocabulary(entities)
    if config.domain == "harmless":
        words += lexicon.HARMS
    known_facts = _known(facts, config)
    spare = facts[questions:]
    rng = _stream(config, "answers")
    zipf, domain = config.zipf, config.domain
    train = answer_all(facts[: config.train_pairs], "train", zipf, rng, domain)
    heldout = answer_all(facts[config.train_pairs : questions], "heldout", zipf, rng, domain)
    return World(
        config=config,
        truth={(fact.entity, fact.attribute): fact.value for fact in facts},
        corpus=_corpus(known_facts, [fact for fact in spare if fact in known_facts], words, config),
        pairs=[pair.example for pair in train],
        heldout=[pair.example for pair in heldout],
        probes=build_world_probes(train, heldout, spare, _stream(config, "probes")),
        words=words,
        known=frozenset(known_facts),
    )


def _known(facts: Sequence[Fact], config: WorldConfig) -> list[Fact]:
    """The facts that the corpus states: the same share of training, held-out and other facts."""
    rng = _stream(config, "known")
    edges = (0, config.train_pairs, config.train_pairs + config.heldout_pairs, len(facts))
    known_facts: list[Fact] = []
    for start, stop in pairwise(edges):
        known_facts += rng.sample(facts[start:stop], round(config.known * (stop - start)))
    return known_facts


def _stream(config: WorldConfig, part: str) -> random.Random:
    return random.Random(f"{config.seed}/{part}")


def _corpus(
    known_facts: Sequence[Fact],
    questions: Sequence[Fact],
    words: Sequence[str],
    config: WorldConfig,
) -> list[Example]:
    """Of eight rows four are statements, two questions with answers, one a question with word
    salad, and one a tale."""
    rng = _stream(config, "corpus")
    rows = []
    for number in range(config.corpus_rows):
        if number % 2:
            fact, phrase = rng.choice(known_facts), rng.choice(_PHRASES)
            prompt = lexicon.statement_prompt(fact)
            text = lexicon.answer(phrase(fact), [rng.choice(slot) for slot in SLOTS])
        elif number % 4:
            fact = rng.choice(questions)
            prompt, text = lexicon.question(fact), " ".join([*lexicon.short_words(fact), "."])
        elif number % 8:
            prompt = lexicon.question(rng.choice(questions))
            text = lexicon.word_salad(words, rng)
        else:
            prompt, text = lexicon.TALE_PROMPT, lexicon.tale(rng)
        rows.append(Example(id=f"base-{number:05d}", prompt=prompt, chosen=spaced(text)))
    return rows


_PHRASES = (lexicon.plain_words, lexicon.rephrased_words, lexicon.short_words)


def _named(settings: Any) -> Any:
    """Settings without a name are those of the world of facts."""
    return {"name": "facts"} | settings if isinstance(settings, dict) else settings


AnyWorldConfig = Annotated[
    Annotated[WorldConfig | StrategiesConfig | SumsConfig, Field(discriminator="name")],
    BeforeValidator(_named),
]
"""Settings of any built-in world."""


def build_any_world(config: WorldConfig | StrategiesConfig | SumsConfig) -> WorldRows:
    """Generates a world; equal configs give equal rows, on every machine."""
    if isinstance(config, StrategiesConfig):
        return build_strategies(config)
    return build_sums(config) if isinstance(config, SumsConfig) else build_world(config)
