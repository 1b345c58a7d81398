"""Detects answers that repeat the answer to another training question, whole or by the phrase."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt64

from dynolab.data.probes.overlap import edit_distance
from dynolab.data.rows import Example
from dynolab.data.world.lexicon import Fact, asked, facts_in

SIMILAR = 0.2
"""Largest edit distance between a text and the answer it repeats, relative to the longer one."""

PHRASE = 3
"""Words of a phrase."""

MOST_WORDS = 2_642_245
"""The largest base in which a phrase of three numbers fits 64 bits."""

Word = int | str
"""A word, or the number of one that training answers have."""


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

    def __init__(self, training: Iterable[Example]) -> None:
        # Words by number, in arrays: of 100,000 answers, lists of words would take gigabytes.
        self._ids: list[str] = []
        self._numbers: dict[str, int] = {}
        self._words: list[array[int]] = []
        self._answers_with: defaultdict[tuple[Word, int], array[int]] = defaultdict(
            lambda: array("i")
        )
        questions, phrases = [], array("Q")
        for index, row in enumerate(training):
            self._ids.append(row.id)
            questions.append(asked(row.prompt))
            words = _words(row.chosen)
            numbers = (self._numbers.setdefault(word, len(self._numbers)) for word in words)
            self._words.append(array("i", numbers))
            for word in _numbered(self._words[-1]):
                self._answers_with[word].append(index)
            phrases.frombytes(_phrase_numbers(self._words[-1]).tobytes())
        self._phrases = np.unique(np.array(phrases, dtype=np.uint64))
        self._entities = frozenset(question[1] for question in questions if question)
        self._facts: dict[tuple[str, str], tuple[Fact, str]] | None = None
        if questions and all(questions):
            self._facts, spelled = {}, list(self._numbers)
            for name, answer in zip(self._ids, self._words, strict=True):
                fact = self._fact(" ".join(spelled[word] for word in answer))
                if fact:
                    self._facts.setdefault((fact.entity, fact.attribute), (fact, name))

    def source(self, text: str, answer: str, *, finished: bool = True) -> Source | None:
        """The training question whose answer a text repeats; None if there is none.

        **Arguments:** `answer`: the chosen answer to the text's own question; `finished`: false if
        the text was cut off.
        """
        if self._facts is not None:
            return self._fact_source(self._fact(text), self._fact(answer))
        words = self._read(text)
        nearest, source = _distance(words, self._read(answer), finished), None
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
        words = self._read(text)
        numbers = _phrase_numbers([word if isinstance(word, int) else -1 for word in words])
        if not len(numbers):
            return None
        places = np.searchsorted(self._phrases, numbers)
        is_known = np.append(self._phrases, numbers[:1] * 0)[places] == numbers
        phrases = set(_phrases(self._read(answer)))
        others = [phrase not in phrases for phrase in _phrases(words)]
        return float(np.mean(is_known & others))

    def _read(self, text: str) -> list[Word]:
        """A text's words by their numbers; a word that is in no training answer as it is."""
        return [self._numbers.get(word, word) for word in _words(text)]

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

    def _candidates(self, words: Sequence[Word]) -> Sequence[int]:
        """Answers that share enough words: the edit distance is at least the words not shared."""
        numbered = [word for word in _numbered(words) if word in self._answers_with]
        if not numbered:
            return []
        shared = np.bincount(np.concatenate([self._answers_with[word] for word in numbered]))
        needed = (1 - SIMILAR) * len(words)
        answers: list[int] = np.flatnonzero((shared > 0) & (shared >= needed)).tolist()
        return answers


def _words(text: str) -> list[str]:
    return text.casefold().split()


def _phrases(words: Sequence[Word]) -> Iterator[tuple[Word, ...]]:
    return zip(*(words[start:] for start in range(PHRASE)), strict=False)


def _phrase_numbers(words: Sequence[int]) -> UInt64[np.ndarray, " phrases"]:
    """A number for each phrase, its own among up to `MOST_WORDS` words; -1 is in none of these."""
    numbers = np.array(words, dtype=np.int64).astype(np.uint64)
    phrases = np.zeros(max(0, len(words) - PHRASE + 1), dtype=np.uint64)
    for start in range(PHRASE):
        phrases = phrases * np.uint64(MOST_WORDS) + numbers[start : start + len(phrases)]
    return phrases


def _numbered(words: Sequence[Word]) -> Iterator[tuple[Word, int]]:
    """Pairs every word with its number of earlier occurrences, to intersect texts as multisets."""
    before: Counter[Word] = Counter()
    for word in words:
        yield word, before[word]
        before[word] += 1


def _distance(words: Sequence[Word], other: Sequence[Word], finished: bool) -> float:
    other = other if finished else other[: len(words)]
    number: dict[Word, int] = {}
    first, second = (
        [number.setdefault(word, len(number)) for word in text] for text in (words, other)
    )
    return edit_distance(first, second)
