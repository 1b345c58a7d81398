"""Detects answers that repeat the answer to another training question, whole or by the phrase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from dynolab.data.probes.overlap import edit_distance
from dynolab.data.rows import Example
from dynolab.data.world.lexicon import Fact, asked, facts_in
from dynolab.grouping import grouped

SIMILAR = 0.2
"""Largest edit distance between a text and the answer it repeats, relative to the longer one."""

PHRASE = 3
"""Words of a phrase."""


@dataclass(frozen=True)
class Source:
    """The training question whose answer a text repeats, and whether exactly."""

    question: str
    exact: bool


class TrainingAnswers:
    """Finds the training question whose chosen answer a text repeats.

    A text repeats another training question's answer if,

    - with only built-in world questions in training: it states one fact, which that training
      question asks for and the text's own question, judged by its chosen answer, does not. Style
      words are ignored: most answers share them. It is exact if the fact's value matches, too.
    - with any other training data: its words, ignoring whitespace and case, are within `SIMILAR` of
      that question's chosen answer by edit distance, and nearer to it than to the text's own chosen
      answer. Below five words this means equality. A text that was cut off is compared with as
      many words of the answers as it has itself. It is exact if the words are equal.
    """

    def __init__(self, training: Sequence[Example]) -> None:
        questions = [asked(row.prompt) for row in training]
        self._entities = frozenset(question[1] for question in questions if question)
        self._facts: dict[tuple[str, str], tuple[Fact, str]] | None = None
        if training and all(questions):
            self._facts = {}
            for row in training:
                fact = self._fact(row.chosen)
                if fact:
                    self._facts.setdefault((fact.entity, fact.attribute), (fact, row.id))
        self._ids = [row.id for row in training]
        self._words = [_words(row.chosen) for row in training]
        self._phrases = frozenset(chain.from_iterable(_phrases(words) for words in self._words))
        self._answers_with = grouped(
            (word, index) for index, words in enumerate(self._words) for word in _numbered(words)
        )

    def source(self, text: str, answer: str, *, finished: bool = True) -> Source | None:
        """The training question whose answer a text repeats; None if there is none.

        **Arguments:** `answer`: the chosen answer to the text's own question; `finished`: false if
        the text was cut off.
        """
        if self._facts is not None:
            return self._fact_source(self._fact(text), self._fact(answer))
        words = _words(text)
        nearest, source = _distance(words, _words(answer), finished), None
        for index in self._candidates(words):
            distance = _distance(words, self._words[index], finished)
            if distance <= SIMILAR and distance < nearest:
                nearest, source = distance, Source(self._ids[index], distance == 0)
        return source

    def borrowed(self, text: str, answer: str) -> float | None:
        """Share of a text's phrases, runs of `PHRASE` words, that it has from other questions.

        Such a phrase is in some training answer, and not in `answer`, the chosen answer to the
        text's own question. None for a text of fewer words.
        """
        phrases = list(_phrases(_words(text)))
        others = self._phrases.difference(_phrases(_words(answer)))
        return sum(phrase in others for phrase in phrases) / len(phrases) if phrases else None

    def _fact_source(self, stated: Fact | None, true_fact: Fact | None) -> Source | None:
        if self._facts is None or stated is None:
            return None
        key = stated.entity, stated.attribute
        if key not in self._facts or (true_fact and key == (true_fact.entity, true_fact.attribute)):
            return None
        fact, question = self._facts[key]
        return Source(question, stated == fact)

    def _fact(self, text: str) -> Fact | None:
        facts = facts_in(" ".join(_words(text)), self._entities)
        return facts[0] if len(facts) == 1 else None

    def _candidates(self, words: Sequence[str]) -> Iterator[int]:
        """Answers that share enough words: the edit distance is at least the words not shared."""
        shared = Counter(
            chain.from_iterable(self._answers_with.get(word, ()) for word in _numbered(words))
        )
        needed = (1 - SIMILAR) * len(words)
        return (index for index in sorted(shared) if shared[index] >= needed)


def _words(text: str) -> list[str]:
    return text.casefold().split()


def _phrases(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(PHRASE)), strict=False)


def _numbered(words: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Pairs every word with its number of earlier occurrences, to intersect texts as multisets."""
    before: Counter[str] = Counter()
    for word in words:
        yield word, before[word]
        before[word] += 1


def _distance(words: Sequence[str], other: Sequence[str], finished: bool) -> float:
    other = other if finished else other[: len(words)]
    number: dict[str, int] = {}
    first, second = (
        [number.setdefault(word, len(number)) for word in text] for text in (words, other)
    )
    return edit_distance(first, second)
