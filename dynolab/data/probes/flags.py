"""Flags for probe rows whose likelihood is easily misread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dynolab.data.probes.kinds import ORIGINAL
from dynolab.data.probes.overlap import TrainingTexts, bare
from dynolab.data.rows import Example, ProbeRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_UNTRAINED = ("irr_test", "irr_hum", "random_nonhum")


def flag_rows(
    rows: Iterable[ProbeRow],
    pairs: Sequence[Example],
    training: TrainingTexts,
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
    - `training`: the texts of all training rows.
    - `tokenizer`: the policy's; the last two flags need it.
    """
    by_id = {pair.id: pair for pair in pairs}
    duplicates = repeated(pairs)
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
    seen: set[tuple[str, str, str]] = set()
    duplicates = set()
    for pair in pairs:
        texts = (bare(pair.prompt), bare(pair.chosen), bare(pair.rejected or ""))
        if texts in seen:
            duplicates.add(pair.id)
        seen.add(texts)
    return duplicates
