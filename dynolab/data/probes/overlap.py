"""Texts that occur in the training rows, and how far two answers are apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from dynolab.data.rows import Example

_TURN = re.compile(r"\n\n(?:Human|Assistant|System):")


def bare(text: str) -> str:
    """A text with normalised white space, for comparing texts."""
    return " ".join(text.split())


class TrainingTexts:
    """Prompts and answers of training rows, and the turns of dialogues in their prompts.

    An answer of one row is often an earlier turn in another row's prompt: training sees it there.
    """

    def __init__(self, train: Iterable[Example]) -> None:
        self._prompts: set[str] = set()
        self._answers: set[str] = set()
        for row in train:
            self._prompts.add(bare(row.prompt))
            turns = _TURN.split(row.prompt)[1:]
            self._answers |= {bare(text) for text in (row.chosen, row.rejected or "", *turns)}
        self._answers.discard("")

    def prompt(self, text: str) -> bool:
        """Whether a row has this prompt."""
        return bare(text) in self._prompts

    def answer(self, text: str) -> bool:
        """Whether this text is an answer of a row, or a turn in a row's prompt."""
        return bare(text) in self._answers

    def touches(self, row: Example) -> bool:
        """Whether a row's prompt, chosen or rejected answer occurs in the training rows."""
        texts = (row.chosen, row.rejected or "")
        return self.prompt(row.prompt) or any(self.answer(text) for text in texts)


def disjoint(heldout: Sequence[Example], train: Sequence[Example]) -> list[Example]:
    """Held-out examples whose prompt, chosen and rejected texts do not occur in training rows."""
    known = TrainingTexts(train)
    return [row for row in heldout if not known.touches(row)]


def edit_distance(tokens: Sequence[int], other: Sequence[int]) -> float:
    """Levenshtein distance of two token sequences, divided by the longer one's length.

    Row by row, `d_j = min(d'_j + 1, d'_{j−1} + [a ≠ b_j], d_{j−1} + 1)`. Insertions within a row
    are a running minimum, `d_j = j + min_{k ≤ j} (t_k − k)`, t the minimum of the other two.

    **Returns:** 0 for equal sequences, 1 if nothing is shared.
    """
    longest = max(len(tokens), len(other))
    if longest == 0:
        return 0.0
    columns, place = np.asarray(other), np.arange(len(other) + 1)
    row = place.copy()
    for token in tokens:
        best = row + 1
        best[1:] = np.minimum(best[1:], row[:-1] + (columns != token))
        row = place + np.minimum.accumulate(best - place)
    return float(row[-1]) / longest
