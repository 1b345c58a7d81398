"""Whether a model answers a question with the answer to another training question."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dynolab.data.probes.edit_distance import edit_distance
from dynolab.data.rows import Example
from dynolab.data.world.lexicon import Fact, asked, facts_in

SIMILAR = 0.2
"""Largest edit distance of a text from the answer that it repeats, over the longer one's words."""


@dataclass(frozen=True)
class Source:
    """The training question that a text answers, and whether with all of its answer."""

    question: str
    exact: bool


class TrainingAnswers:
    """The chosen answers of training questions, to find whose answer a text is.

    The rule: a text is another training question's answer if,

    - where all training questions are the built-in world's, it states one fact, and that training
      question asks for it while the text's own question, by its chosen answer, does not. Style
      words do not count: most answers share them. It is exact if the value is that question's.
    - elsewhere, its words, whitespace and case aside, are within `SIMILAR` of that question's
      chosen answer by edit distance, and nearer to it than to the text's own chosen answer. Below
      five words that is equality. A text that was cut off is compared with as many words of the
      answers as it has itself. It is exact if the words are equal.
    """

    def __init__(self, training: Sequence[Example]) -> None:
        questions = [asked(row.prompt) for row in training]
        self._entities = frozenset(question[1] for question in questions if question)
        self._facts: dict[tuple[str, str], tuple[Fact, str]] | None = None
        if training and all(questions):
            self._facts = {}
            for row in training:
                if fact := self._fact(row.chosen):
                    self._facts.setdefault((fact.entity, fact.attribute), (fact, row.id))
        self._names = [row.id for row in training]
        self._words = [_words(row.chosen) for row in training]
        self._holding: dict[tuple[str, int], list[int]] = defaultdict(list)
        for index, words in enumerate(self._words):
            for word in _numbered(words):
                self._holding[word].append(index)

    def source(self, text: str, own: str, *, finished: bool = True) -> Source | None:
        """The training question whose answer a text is; None where it is nobody's.

        **Arguments:** `own`: the chosen answer to the question that was asked; `finished`: the
        text was not cut off.
        """
        if self._facts is not None:
            return self._of_fact(self._fact(text), self._fact(own))
        words = _words(text)
        nearest, source = _distance(words, _words(own), finished), None
        for index in self._candidates(words):
            distance = _distance(words, self._words[index], finished)
            if distance <= SIMILAR and distance < nearest:
                nearest, source = distance, Source(self._names[index], distance == 0)
        return source

    def _of_fact(self, stated: Fact | None, own: Fact | None) -> Source | None:
        if self._facts is None or stated is None:
            return None
        place = stated.entity, stated.attribute
        if place not in self._facts or (own and place == (own.entity, own.attribute)):
            return None
        fact, question = self._facts[place]
        return Source(question, stated == fact)

    def _fact(self, text: str) -> Fact | None:
        facts = facts_in(" ".join(_words(text)), self._entities)
        return facts[0] if len(facts) == 1 else None

    def _candidates(self, words: Sequence[str]) -> Iterator[int]:
        """Answers that share enough words: an edit distance is at least the words not shared."""
        shared = Counter(
            index for word in _numbered(words) for index in self._holding.get(word, ())
        )
        needed = (1 - SIMILAR) * len(words)
        return (index for index in sorted(shared) if shared[index] >= needed)


def _words(text: str) -> list[str]:
    return text.casefold().split()


def _numbered(words: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Every word with how often it stood before, so that sets of these intersect as bags do."""
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
