"""Batches in one row without padding, in which responses attend to one copy of their prompt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dynolab.data.batches import TokenBatch, collate, in_groups
from dynolab.data.encode import Encoded
from dynolab.data.packing import Row, packed_length, plan_rows, rows_by_length

FILLED = 0.85
"""Least part of a piece's length that each of its responses fills: on a CPU more calls of attention
cost less than padding."""

NEAR_TOKENS = 4096
"""Tokens of a batch on a CPU: the hidden states of more of them leave its cache."""


@dataclass(frozen=True)
class Piece:
    """Tokens that attend together: a prompt to itself, or some of its responses to it and to
    themselves.

    A query attends to the keys up to its own: query t to the first `keys − queries + t + 1`. What a
    shorter response has in its last places is not read.
    """

    query: Int[Tensor, "responses queries"]
    """Places of the queries in the batch's row."""

    key: Int[Tensor, "responses keys"]
    """Places of the prompt, if it is not the query itself, and of the queries."""

    def visible(self, window: int | None = None) -> Bool[Tensor, "queries keys"]:
        """Whether a query attends to a key.

        **Arguments:** `window`: to no more than itself and the `window − 1` before it.
        """
        queries, keys = self.query.shape[1], self.key.shape[1]
        seen = torch.ones(queries, keys, dtype=torch.bool, device=self.query.device)
        seen = seen.tril(keys - queries)
        return seen if window is None else seen.triu(keys - queries - window + 1)


@dataclass(frozen=True, kw_only=True)
class PrefixBatch(TokenBatch):
    """A token batch of one row: every prompt, followed by its responses without their last tokens.

    A last token predicts nothing. `position_ids` are those that a token would have in a row with
    its prompt and response alone; `position[n]` is an index into the row.
    """

    pieces: tuple[Piece, ...]

    order: Int[Tensor, " length"]
    """Where each token of the row stands among all queries of all pieces."""

    @property
    def token_row(self) -> Int[Tensor, " tokens"]:
        """All tokens are in the first row."""
        return torch.zeros_like(self.sequence)

    def visible(self, window: int | None = None) -> Bool[Tensor, "1 1 length length"]:
        """Attention mask of the whole row, for attention that computes all of its pairs."""
        length = len(self.order)
        seen = torch.zeros(length, length, dtype=torch.bool, device=self.order.device)
        for piece in self.pieces:
            queries, keys = piece.visible(window).nonzero(as_tuple=True)
            seen[piece.query[:, queries], piece.key[:, keys]] = True
        return seen[None, None]


def plan_prefixes(
    sequences: Sequence[Encoded], batch_tokens: int, shared: bool
) -> Iterator[list[Row]]:
    """Yields batches of rows; the sequences of a row have the same prompt.

    **Arguments:**

    - `batch_tokens`: maximum number of tokens of a batch, counting a shared prompt once.
    - `shared`: whether prompts are shared; otherwise every sequence is a row, and the maximum
      applies to rows × padded length.
    """
    if not shared:
        yield from rows_by_length(sequences, plan_rows(sequences, None, batch_tokens), batch_tokens)
        return
    rows = plan_rows(sequences, math.inf, batch_tokens)
    if all(len(row) == 1 for row in rows):
        yield from rows_by_length(sequences, rows, batch_tokens)
        return
    rows = sorted(rows, key=lambda row: -sequences[row[0]].prompt_length)
    yield from in_groups(rows, [packed_length(sequences, row) for row in rows], batch_tokens)


def collate_prefixes(
    sequences: Sequence[Encoded], rows: Sequence[Row], pad_id: int, filled: float = FILLED
) -> tuple[TokenBatch, list[int]]:
    """Collates rows; also returns the indices of their sequences, in the batch's order.

    **Arguments:** `filled`: least part of a piece's length that each of its responses fills.
    """
    if all(len(row) == 1 for row in rows):
        members = [row[0] for row in rows]
        return collate([sequences[number] for number in members], pad_id), members
    members = [n for row in rows for n in sorted(row, key=lambda n: -sequences[n].response_length)]
    line = _Line()
    position: list[int] = []
    for row in rows:
        first = sequences[row[0]]
        prompt = line.append(first.ids[: first.prompt_length], 0)
        line.piece([prompt], range(0))
        tails: list[range] = []
        for number in sorted(row, key=lambda n: -sequences[n].response_length):
            tail = line.append(sequences[number].ids[len(prompt) : -1], len(prompt))
            position += [prompt[-1], *tail]
            if tails and len(tail) < filled * len(tails[0]):
                line.piece(tails, prompt)
                tails = []
            tails += [tail] if tail else []
        if tails:
            line.piece(tails, prompt)
    fields = vars(collate([sequences[number] for number in members], pad_id)) | {
        "input_ids": torch.tensor([line.ids]),
        "attention_mask": torch.ones(1, len(line.ids), dtype=torch.long),
        "position_ids": torch.tensor([line.places]),
        "position": torch.tensor(position),
    }
    return PrefixBatch(**fields, pieces=tuple(line.pieces), order=line.order()), members


class _Line:
    """A batch's row while it is written."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.places: list[int] = []
        self.pieces: list[Piece] = []

    def append(self, ids: Sequence[int], place: int) -> range:
        """Adds tokens, the first of them at a place of its text; returns where they stand."""
        start = len(self.ids)
        self.ids += ids
        self.places += range(place, place + len(ids))
        return range(start, len(self.ids))

    def piece(self, tails: Sequence[range], prompt: range) -> None:
        """Lets tails, longest first, attend to a prompt and to themselves."""
        starts = torch.tensor([tail.start for tail in tails])[:, None]
        lasts = torch.tensor([tail.stop - 1 for tail in tails])[:, None]
        query = torch.minimum(starts + torch.arange(len(tails[0])), lasts)
        before = torch.arange(prompt.start, prompt.stop).expand(len(tails), -1)
        self.pieces.append(Piece(query, torch.cat([before, query], dim=1)))

    def order(self) -> Int[Tensor, " length"]:
        """Of `PrefixBatch`: a token is the first of the queries that stand for it."""
        queries = torch.cat([piece.query.flatten() for piece in self.pieces])
        order = torch.full((len(self.ids),), len(queries))
        return order.scatter_reduce(0, queries, torch.arange(len(queries)), "amin")


def places_of(mask: Int[Tensor, "rows length"]) -> Int[Tensor, "rows length"]:
    """Position of every token in its text; meaningless on padding."""
    return (mask.cumsum(1) - 1).clamp(min=0)
