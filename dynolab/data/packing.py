"""Packed rows: a prompt once, followed by several of its responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dynolab.data.batches import TokenBatch, collate
from dynolab.data.encode import Encoded

PROMPT, PADDING = 0, -1

Row = list[int]
"""Indices of the sequences that share one row; all have the same prompt."""


@dataclass(frozen=True, kw_only=True)
class PackedBatch(TokenBatch):
    """A token batch whose sequences share the rows of `input_ids`.

    A row is a prompt followed by its responses, each without its last token, which predicts
    nothing. A token attends to itself and to earlier tokens of the prompt and of its own segment;
    its `position_ids` are those that it would have in a row with its prompt and response alone.
    `position[n]` is an index into the row: a response's first token is predicted at the end of
    its prompt.
    """

    row: Int[Tensor, " sequences"]
    """Row of every sequence."""

    segment: Int[Tensor, "rows length"]
    """`PROMPT`, `PADDING`, or the number of the response in its row, from 1."""

    @property
    def token_row(self) -> Int[Tensor, " tokens"]:
        """Row of `input_ids` in which every response token is predicted."""
        return self.row[self.sequence]

    def visible(self, window: int | None = None) -> Bool[Tensor, "rows 1 length length"]:
        """Attention mask: whether the token of dimension 2 attends to that of dimension 3.

        **Arguments:**

        - `window`: a token attends to itself and the `window − 1` before it; by default to all.
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
    """Decides which sequences share a row: those with one prompt, while sharing costs less.

    **Arguments:**

    - `width`: hidden size of the model; None if it cannot run packed rows, infinity if the
      length of a row costs nothing.
    - `row_tokens`: maximum length of a row; a longer sequence gets a row of its own.

    **Returns:** rows in the order of their first sequences, each sequence in exactly one.
    """
    if width is None:
        return [[number] for number in range(len(sequences))]
    by_prompt: dict[tuple[int, ...], list[Row]] = {}
    length: dict[int, int] = {}
    for number, sequence in enumerate(sequences):
        parts = by_prompt.setdefault(sequence.ids[: sequence.prompt_length], [[]])
        alone, added = len(sequence.ids) - 1, len(sequence.ids) - sequence.prompt_length - 1
        joined = length[parts[-1][0]] + added if parts[-1] else alone
        fits = row_tokens is None or joined <= row_tokens
        apart = _cost(joined - added, width) + _cost(alone, width)
        if parts[-1] and not (fits and _cost(joined, width) < apart):
            parts.append([])
            joined = alone
        parts[-1].append(number)
        length[parts[-1][0]] = joined
    return sorted(chain.from_iterable(by_prompt.values()))


def packed_length(sequences: Sequence[Encoded], row: Row) -> int:
    """Number of tokens of a packed row."""
    prompt = sequences[row[0]].prompt_length
    return prompt + sum(len(sequences[number].ids) - prompt - 1 for number in row)


def _cost(length: int, width: float) -> float:
    """Cost of a row in tokens: a layer spends `24 w²` operations on a token and `4 w` on a pair.

    Counts multiplications and additions of a transformer layer of width w; a masked kernel
    computes all pairs of a row, masked or not.
    """
    return length + length**2 / (6 * width)


def rows_by_length(
    sequences: Sequence[Encoded], rows: Sequence[Row], batch_tokens: int
) -> Iterator[list[Row]]:
    """Yields batches of rows, longest first; rows × padded length stay within `batch_tokens`."""
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


def collate_rows(
    sequences: Sequence[Encoded], rows: Sequence[Row], pad_id: int
) -> tuple[TokenBatch, list[int]]:
    """Packs rows; also returns the indices of their sequences, in the batch's order."""
    members = list(chain.from_iterable(rows))
    places = iter(range(len(members)))
    row_places = [[next(places) for _ in row] for row in rows]
    return share_prompts(
        collate([sequences[number] for number in members], pad_id), row_places
    ), members


def share_prompts(batch: TokenBatch, rows: Sequence[Row]) -> TokenBatch:
    """Packs the sequences of a batch into shared rows.

    All fields per token or per sequence keep their order.

    **Arguments:**

    - `batch`: one sequence per row.
    - `rows`: from `plan_rows`; each sequence of the batch is in exactly one of them.
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
        for response, sequence in enumerate(row, start=1):
            response_ids = sequences[sequence].ids[prompt:-1]
            row_of[sequence], shift[sequence] = number, len(tokens) - prompt
            tokens += response_ids
            place += range(prompt, prompt + len(response_ids))
            segment += [response] * len(response_ids)
        ids.append(tokens)
        places.append(place)
        segments.append(segment)
    prompts = torch.tensor([sequence.prompt_length for sequence in sequences])[batch.sequence]
    in_response = batch.position >= prompts
    padded = _pad(segments, PADDING)
    fields = vars(batch) | {
        "input_ids": _pad(ids, 0),
        "attention_mask": (padded != PADDING).long(),
        "position_ids": _pad(places, 0),
        "position": batch.position + torch.tensor(shift)[batch.sequence] * in_response,
    }
    return PackedBatch(**fields, row=torch.tensor(row_of), segment=padded)


def sequences_of(batch: TokenBatch) -> list[Encoded]:
    """Recovers the sequences of a batch with one sequence per row."""
    longest = torch.full((len(batch.side),), batch.input_ids.shape[1])
    prompts = longest.scatter_reduce(0, batch.sequence, batch.position + 1, "amin")
    lengths = batch.attention_mask.sum(1)
    rows = zip(batch.input_ids.tolist(), lengths.tolist(), prompts.tolist(), strict=True)
    return [Encoded(tuple(ids[:length]), prompt) for ids, length, prompt in rows]


def _pad(rows: Sequence[Sequence[int]], value: int) -> Int[Tensor, "rows length"]:
    length = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (length - len(row))] for row in rows], dtype=torch.long)
