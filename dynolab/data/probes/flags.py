"""What a person should know of a probe row before reading its likelihood."""

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
    known: TrainingTexts,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> list[ProbeRow]:
    """The rows with these flags beside their own; every row is kept.

    - `empty`: no words; its likelihood is the end-of-sequence's.
    - `identical`: the very answer that it should differ from: the one it was made from, or, of an
      irrelevant kind, the pair's chosen one.
    - `in_training`: of a kind that training must not see, and yet training's.
    - `duplicate`: of a pair with the prompt and answers of an earlier one.
    - `no_tokens`: words, but none that the tokenizer knows; as `empty`.
    - `end_inside`: the end-of-sequence token stands in the middle of it.

    **Arguments:**

    - `pairs`: those that the rows were made of.
    - `known`: all rows that training sees.
    - `tokenizer`: the policy's; the last two flags need it.
    """
    by_id = {pair.id: pair for pair in pairs}
    again = repeated(pairs)
    flagged = []
    for row in rows:
        flags = [*row.flags, *_of_text(row, by_id[row.pair_id], known)]
        if row.pair_id in again:
            flags.append("duplicate")
        if tokenizer is not None:
            flags += _of_tokens(row.response, tokenizer)
        flagged.append(row.model_copy(update={"flags": tuple(dict.fromkeys(flags))}))
    return flagged


def _of_text(row: ProbeRow, pair: Example, known: TrainingTexts) -> list[str]:
    if not row.response.strip():
        return ["empty"]
    flags = []
    side = ORIGINAL.get(row.kind, "chosen")
    original = pair.chosen if side == "chosen" else pair.rejected
    if row.kind not in ("chosen", "rejected") and bare(row.response) == bare(original or ""):
        flags.append("identical")
    if row.kind in _UNTRAINED and known.answer(row.response):
        flags.append("in_training")
    return flags


def _of_tokens(response: str, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    ids = tokenizer(response, add_special_tokens=False)["input_ids"]
    flags = ["no_tokens"] if response.strip() and not ids else []
    return [*flags, "end_inside"] if tokenizer.eos_token_id in ids else flags


def repeated(pairs: Sequence[Example]) -> set[str]:
    """Ids of pairs whose texts an earlier one has."""
    seen: set[tuple[str, str, str]] = set()
    again = set()
    for pair in pairs:
        texts = (bare(pair.prompt), bare(pair.chosen), bare(pair.rejected or ""))
        if texts in seen:
            again.add(pair.id)
        seen.add(texts)
    return again
