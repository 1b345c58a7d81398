"""Texts that occur in the training rows, how far answers are apart, and flags that say so."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from dynolab.data.probes.kinds import ORIGINAL
from dynolab.data.rows import Example, ProbeRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_TURN = re.compile(r"\n\n(?:Human|Assistant|System):")


def bare(text: str) -> str:
    """A text with normalised white space, for comparing texts."""
    return " ".join(text.split())


def _ends(text: str) -> tuple[str, ...]:
    """The first and the last words of a text: equal texts have the same ones, and few others do.

    They take a tenth of the time that `bare` takes for a text of a hundred words.
    """
    return *text.split(None, 3)[:3], *text.rsplit(None, 3)[-3:]


class TrainingTexts:
    """Which texts are prompts and answers of training rows, or turns of dialogues in their prompts.

    An answer of one row is often an earlier turn in another row's prompt: training sees it there.

    **Arguments:** `texts`: all texts that will be asked for; no others are kept of the rows.
    """

    def __init__(self, train: Iterable[Example], texts: Iterable[str]) -> None:
        ends = set(map(_ends, texts))
        self._prompts: set[str] = set()
        self._answers: set[str] = set()
        for row in train:
            if _ends(row.prompt) in ends:
                self._prompts.add(bare(row.prompt))
            turns = _TURN.split(row.prompt)[1:]
            for text in (row.chosen, row.rejected or "", *turns):
                if _ends(text) in ends:
                    self._answers.add(bare(text))
        self._answers.discard("")

    def prompt(self, text: str) -> bool:
        """Whether a row has this prompt."""
        return bare(text) in self._prompts

    def answer(self, text: str) -> bool:
        """Whether this text is an answer of a row, or a turn in a row's prompt."""
        return bare(text) in self._answers

    def touches(self, row: Example) -> bool:
        """Whether a row's prompt, chosen or rejected answer occurs in the training rows."""
        prompt, *answers = _texts(row)
        return self.prompt(prompt) or any(map(self.answer, answers))


def disjoint(heldout: Sequence[Example], train: Sequence[Example]) -> list[Example]:
    """Held-out examples whose prompt, chosen and rejected texts do not occur in training rows."""
    training_texts = TrainingTexts(train, chain.from_iterable(map(_texts, heldout)))
    return [row for row in heldout if not training_texts.touches(row)]


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


_UNTRAINED = ("irr_test", "irr_hum", "random_nonhum")


def flag_rows(
    rows: Sequence[ProbeRow],
    pairs: Sequence[Example],
    train: Iterable[Example],
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> list[ProbeRow]:
    """Adds these flags to the rows' own; keeps every row.

    - `empty`: has no words; its likelihood is that of end-of-sequence.
    - `identical`: equals the answer that it should differ from: the one it was made from or, for an
      irrelevant kind, the pair's chosen one.
    - `in_training`: is of a kind that training must not see, but occurs in the training rows.
    - `duplicate`: belongs to a pair with the prompt and answers of an earlier one.
    - `no_tokens`: has words, but the tokenizer gives no tokens; its likelihood is as of `empty`.
    - `end_inside`: contains the end-of-sequence token.

    **Arguments:**

    - `pairs`: the pairs that the rows were made of.
    - `train`: all training rows.
    - `tokenizer`: the policy's; the last two flags need it.
    """
    by_id = {pair.id: pair for pair in pairs}
    duplicates = repeated(pairs)
    training = TrainingTexts(train, (row.response for row in rows))
    flagged = []
    for row in rows:
        flags = [*row.flags, *_text_flags(row, by_id[row.pair_id], training)]
        if row.pair_id in duplicates:
            flags.append("duplicate")
        if tokenizer is not None:
            flags += _token_flags(row.content(row.response), tokenizer)
        flagged.append(row.model_copy(update={"flags": tuple(dict.fromkeys(flags))}))
    return flagged


def _text_flags(row: ProbeRow, pair: Example, training: TrainingTexts) -> list[str]:
    if not row.content(row.response).strip():
        return ["empty"]
    flags = []
    side = ORIGINAL.get(row.kind, "chosen")
    original = pair.chosen if side == "chosen" else pair.rejected
    if row.kind not in ("chosen", "rejected") and bare(row.response) == bare(original or ""):
        flags.append("identical")
    if row.kind in _UNTRAINED and training.answer(row.response):
        flags.append("in_training")
    return flags


def _token_flags(response: str, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    ids = tokenizer(response, add_special_tokens=False)["input_ids"]
    flags = ["no_tokens"] if response.strip() and not ids else []
    return [*flags, "end_inside"] if tokenizer.eos_token_id in ids else flags


def repeated(pairs: Sequence[Example]) -> set[str]:
    """Ids of pairs that have the same texts as an earlier pair."""
    seen: set[tuple[str, ...]] = set()
    duplicates = set()
    ends = [hash(tuple(map(_ends, _texts(pair)))) for pair in pairs]
    times = Counter(ends)
    for pair, words in zip(pairs, ends, strict=True):
        if times[words] == 1:
            continue
        texts = tuple(map(bare, _texts(pair)))
        if texts in seen:
            duplicates.add(pair.id)
        seen.add(texts)
    return duplicates


def _texts(pair: Example) -> tuple[str, str, str]:
    return pair.prompt, pair.chosen, pair.rejected or ""
