"""Rows that hold a prompt once, with several of its responses behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.data.encode import Encoded

PROMPT, PADDING = 0, -1

Row = list[int]
"""Numbers of the sequences that stand in one row; all have the same prompt."""


@dataclass(frozen=True, kw_only=True)
class PackedBatch(TokenBatch):
    """A token batch whose sequences share the rows of `input_ids`.

    A row is a prompt and then, one behind another, its responses without their last tokens, which
    predict nothing. A token sees the prompt and the tokens of its own segment, none of them later
    than itself; its `position_ids` are those it would have alone with its prompt. `position[n]` is
    a place in the row, so that a response's first token is predicted at its prompt's end.
    """

    row: Int[Tensor, " sequences"]
    """Row of every sequence."""

    segment: Int[Tensor, "rows length"]
    """`PROMPT`, `PADDING`, or from 1 on the row's responses."""

    @property
    def token_row(self) -> Int[Tensor, " tokens"]:
        """Row of `input_ids` in which every response token is predicted."""
        return self.row[self.sequence]

    def visible(self, window: int | None = None) -> Bool[Tensor, "rows 1 length length"]:
        """Whether the token in the third dimension sees the one in the fourth.

        **Arguments:**

        - `window`: a token sees itself and the `window − 1` before it; by default all.
        """
        key, query = self.segment[:, None, :], self.segment[:, :, None]
        length = self.segment.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=key.device).tril()
        seen = causal & ((key == PROMPT) | (key == query))
        if window is not None:
            place = self.position_ids
            seen = seen & (place[:, :, None] - place[:, None, :] < window)
        return seen[:, None]


def plan_rows(
    sequences: Sequence[Encoded], width: float | None, row_tokens: int | None = None
) -> list[Row]:
    """Which sequences share a row: those of one prompt, as long as that costs less.

    **Arguments:**

    - `width`: hidden size of the model; None where it cannot see packed rows, infinity where
      the length of a row costs nothing.
    - `row_tokens`: bound on a row's length; a longer sequence has a row alone.

    **Returns:** rows in the order of their first sequences, each sequence in exactly one.
    """
    if width is None:
        return [[number] for number in range(len(sequences))]
    by_prompt: dict[tuple[int, ...], list[Row]] = {}
    length: dict[int, int] = {}
    for number, sequence in enumerate(sequences):
        parts = by_prompt.setdefault(sequence.ids[: sequence.prompt_length], [[]])
        alone, added = len(sequence.ids) - 1, sequence.response_length - 1
        joined = length[parts[-1][0]] + added if parts[-1] else alone
        fits = row_tokens is None or joined <= row_tokens
        apart = _cost(joined - added, width) + _cost(alone, width)
        if parts[-1] and not (fits and _cost(joined, width) < apart):
            parts.append([])
            joined = alone
        parts[-1].append(number)
        length[parts[-1][0]] = joined
    return sorted(row for parts in by_prompt.values() for row in parts)


def packed_length(sequences: Sequence[Encoded], row: Row) -> int:
    """Tokens of a row."""
    prompt = sequences[row[0]].prompt_length
    return prompt + sum(sequences[number].response_length - 1 for number in row)


def _cost(length: int, width: float) -> float:
    """What a row costs, in tokens: a layer spends `24 w²` on a token and `4 w` on a pair of them.

    Multiplications and additions of a transformer layer of width w; a masked kernel forms all
    pairs of a row, whether they see each other or not.
    """
    return length + length**2 / (6 * width)


def rows_by_length(
    sequences: Sequence[Encoded], rows: Sequence[Row], batch_tokens: int
) -> Iterator[list[Row]]:
    """Rows, batch by batch, by falling length; rows × padded length stay within `batch_tokens`."""
    batch: list[Row] = []
    longest = 0
    for row in sorted(rows, key=lambda row: -packed_length(sequences, row)):
        if batch and (len(batch) + 1) * longest > batch_tokens:
            yield batch
            batch = []
        longest = longest if batch else packed_length(sequences, row)
        batch.append(row)
    if batch:
        yield batch


def share_prompts(batch: TokenBatch, rows: Sequence[Row]) -> TokenBatch:
    """The same sequences with their prompts shared row by row.

    Everything listed per token or per sequence keeps its order.

    **Arguments:**

    - `batch`: sequences in rows of their own.
    - `rows`: as `plan_rows` gives them; each sequence of the batch in one of them.
    """
    if len(rows) == len(batch.side):
        return batch
    sequences = sequences_of(batch)
    ids, places, segments = [], [], []
    row_of, shift = [0] * len(sequences), [0] * len(sequences)
    for number, row in enumerate(rows):
        prompt = sequences[row[0]].prompt_length
        tokens = list(sequences[row[0]].ids[:prompt])
        place, segment = list(range(prompt)), [PROMPT] * prompt
        for which, sequence in enumerate(row, start=1):
            own = sequences[sequence].ids[prompt:-1]
            row_of[sequence], shift[sequence] = number, len(tokens) - prompt
            tokens += own
            place += range(prompt, prompt + len(own))
            segment += [which] * len(own)
        ids.append(tokens)
        places.append(place)
        segments.append(segment)
    prompts = torch.tensor([sequence.prompt_length for sequence in sequences])[batch.sequence]
    behind = batch.position >= prompts
    padded = _pad(segments, PADDING)
    fields = vars(batch) | {
        "input_ids": _pad(ids, 0),
        "attention_mask": (padded != PADDING).long(),
        "position_ids": _pad(places, 0),
        "position": batch.position + torch.tensor(shift)[batch.sequence] * behind,
    }
    return PackedBatch(**fields, row=torch.tensor(row_of), segment=padded)


def sequences_of(batch: TokenBatch) -> list[Encoded]:
    """The sequences that a batch with rows of their own was made of."""
    longest = torch.full((len(batch.side),), batch.input_ids.shape[1])
    prompts = longest.scatter_reduce(0, batch.sequence, batch.position + 1, "amin")
    lengths = batch.attention_mask.sum(1)
    rows = zip(batch.input_ids.tolist(), lengths.tolist(), prompts.tolist(), strict=True)
    return [Encoded(tuple(ids[:length]), prompt) for ids, length, prompt in rows]


def _pad(rows: Sequence[Sequence[int]], value: int) -> Int[Tensor, "rows length"]:
    length = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (length - len(row))] for row in rows], dtype=torch.long)
