"""Texts with one topic each, generated from vocabularies or read from a file or the Hub."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.chapters.transfer.topic_words import COMMON, FIELDS, TOPICS
from dynolab.data.source_checks import (
    FilePath,
    check_source,
    dataset_commit,
    file_digest,
    named_file,
    pinned,
)
from dynolab.data.sources.files import hub_records, read_records
from dynolab.errors import ConfigError

_WORD = re.compile(r"\w+")
_OWN, _FIELD, _OTHER = 0.15, 0.25, 0.15
"""Shares of a generated text's words: of its topic, of its field, of any other topic."""


class TopicConfig(BaseModel):
    """Settings of texts with topics."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    source: Literal["builtin", "file", "hub"] = Field(
        default="builtin",
        description="Texts generated from topic vocabularies, or rows of your own.",
    )
    path: FilePath | None = Field(
        default=None, description="Source `file`: a .jsonl, .jsonl.gz or .parquet file."
    )
    hub_name: str | None = Field(
        default=None, description="Source `hub`: fancyzhx/ag_news, or similar."
    )
    hub_split: str = Field(default="train", description="Split of the Hub data set.")
    revision: str | None = Field(
        default=None, description="Hub: branch, tag or commit. File: the sha256 of its content."
    )
    text: str = Field(default="text", description="Column of the text.")
    label: str = Field(default="label", description="Column of the topic: whole numbers from 0.")
    texts: int = Field(
        default=2_400, ge=20, description="Number of texts to use (the first ones) or to generate."
    )
    words: int = Field(default=24, ge=1, description="Number of words of a generated text.")
    vocabulary: int = Field(
        default=400,
        ge=2,
        description="Number of words that are counted, the commonest of all texts.",
    )
    seed: int = Field(default=0, ge=0, description="Seed of the generated texts.")

    @model_validator(mode="after")
    def _check_source(self) -> TopicConfig:
        check_source(self, "texts", path=("file",), hub_name=("hub",))
        return self


@dataclass(frozen=True)
class Texts:
    """Texts as lists of words, each with the number of its topic."""

    words: list[list[str]]
    labels: Int[ndarray, " texts"]
    names: tuple[str, ...]


def resolve_topics(config: TopicConfig) -> TopicConfig:
    """Returns the config with the revision of its content, like `resolve_data`."""
    if config.source == "builtin":
        return config
    if config.hub_name is not None:
        revision = dataset_commit("texts.hub_name", config.hub_name, config.revision)
    else:
        digest = file_digest("texts.path", _file(config)).hex()
        remedy = f"the file now has sha256 {digest}; restore it"
        revision = pinned("texts.revision", digest, config.revision, remedy)
    return config.model_copy(update={"revision": revision})


def load_topics(config: TopicConfig) -> Texts:
    """Loads the texts of a source.

    **Raises:** `ConfigError` for a missing file or column, a label that is not a whole number from
    0, a topic without texts.
    """
    if config.source == "builtin":
        return generate(config)
    words, labels = [], []
    for number, record in enumerate(_records(config)):
        if number == config.texts:
            break
        for column, kind in ((config.text, str), (config.label, int)):
            value = record.get(column)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ConfigError(
                    f"texts row {number}, column {column}",
                    value,
                    f"must be a {'text' if kind is str else 'whole number'}; name the column by "
                    "texts.text and texts.label",
                )
        words.append(_WORD.findall(record[config.text].lower()))
        labels.append(record[config.label])
    if not labels:
        raise ConfigError(
            "texts", config.path or config.hub_name, "has no texts; give a source with texts"
        )
    if min(labels) < 0:
        raise ConfigError("texts.label", min(labels), "labels must be whole numbers from 0")
    # A label far out of range must not allocate a table of its size.
    present = set(labels)
    missing = next(n for n in range(len(labels) + 1) if n not in present)
    if missing <= max(labels):
        raise ConfigError(
            "texts.label",
            missing,
            f"no text of this topic, though labels reach {max(labels)}; number topics from 0 "
            "without gaps, or use more texts (texts.texts)",
        )
    names = tuple(f"topic {number}" for number in range(max(labels) + 1))
    return Texts(words, np.array(labels), names)


def generate(config: TopicConfig) -> Texts:
    """Generates texts on the built-in topics in turn.

    A word is one of the topic's own by Zipf's law (15%), one of the topic's field (25%), one of any
    other topic (15%), or a common one: a text shows its field clearly and its topic faintly.
    """
    rng, names = np.random.default_rng(config.seed), tuple(TOPICS)
    labels = np.arange(config.texts) % len(names)
    words = [_text(names[label], config.words, rng) for label in labels]
    return Texts(words, labels, names)


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


def _file(config: TopicConfig) -> Path:
    return named_file("texts.path", config.path, "name a .jsonl, .jsonl.gz or .parquet file")


def _records(config: TopicConfig) -> Iterator[dict[str, Any]]:
    if config.hub_name is None:
        return read_records(_file(config), "texts.path")
    return hub_records("texts.hub_name", config.hub_name, config.hub_split, config.revision)
