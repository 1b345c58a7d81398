"""Batches in which a prompt runs once and its responses reuse its keys and values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Int
from torch import Tensor

from dynolab.data.batches import TokenBatch, collate
from dynolab.data.encode import Encoded
from dynolab.data.packing import Row, packed_length, plan_rows, rows_by_length

ENOUGH, FILLED = 1024, 0.85
"""A forward of over `ENOUGH` tokens takes no response that fills less than `FILLED` of its row."""


@dataclass(frozen=True)
class Tails:
    """Responses of one forward, each without its last token, which predicts nothing."""

    prompt: Int[Tensor, " responses"]
    """Row of the prompt that each response continues."""

    input_ids: Int[Tensor, "responses length"]
    attention_mask: Int[Tensor, "responses length"]


@dataclass(frozen=True, kw_only=True)
class PrefixBatch(TokenBatch):
    """A token batch with left-padded prompts in `input_ids` and their responses in `tails`.

    Prompts end in the last column, so that a response directly follows its prompt. `position[n]`
    is an index into the hidden states of all forwards: the last of each prompt, then all of each
    of `tails`, row by row.

    In packed rows (`PackedBatch`) a masked kernel computes every pair of a row; here no attention
    between responses is computed. The price is a second forward and copies of the prompts' keys
    and values.
    """

    tails: tuple[Tails, ...]

    @property
    def token_row(self) -> Int[Tensor, " tokens"]:
        """Row of `input_ids` that holds the prompt of every response token."""
        starts = torch.cat([tail.prompt for tail in self.tails])
        return starts[self.sequence]

    @property
    def continuations(self) -> int:
        """Number of forwards after the prompts'."""
        return sum(tail.input_ids.shape[1] > 0 for tail in self.tails)

    def with_continuations(self, count: int) -> Self:
        """The batch with at least `count` of them; what is added reads a token and is not used."""
        idle = Tails(
            prompt=torch.zeros(1, dtype=torch.long),
            input_ids=self.input_ids[:1, -1:],
            attention_mask=torch.ones(1, 1, dtype=torch.long),
        )
        return replace(self, tails=(*self.tails, *[idle] * (count - self.continuations)))


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
        alone = plan_rows(sequences, None, batch_tokens)
        yield from rows_by_length(sequences, alone, batch_tokens)
        return
    batch: list[Row] = []
    size = 0
    # Sorted by prompt length, as every row is padded to the longest prompt of its batch.
    rows = plan_rows(sequences, math.inf, batch_tokens)
    for row in sorted(rows, key=lambda row: -sequences[row[0]].prompt_length):
        added = packed_length(sequences, row)
        if batch and size + added > batch_tokens:
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += added
    if batch:
        yield batch


def collate_prefixes(
    sequences: Sequence[Encoded],
    rows: Sequence[Row],
    pad_id: int,
    batch_tokens: int,
    *,
    always: bool = False,
) -> tuple[TokenBatch, list[int]]:
    """Collates rows; also returns the indices of their sequences, in the batch's order.

    **Arguments:**

    - `batch_tokens`: maximum of responses × padded length, prompts included, of a forward.
    - `always`: whether prompts have a forward of their own even where no responses share one.
    """
    if not always and all(len(row) == 1 for row in rows):
        members = [row[0] for row in rows]
        return collate([sequences[number] for number in members], pad_id), members
    prompt_of = {number: place for place, row in enumerate(rows) for number in row}
    members = sorted(prompt_of, key=lambda number: -sequences[number].response_length)
    groups = list(_split_forwards(sequences, members, batch_tokens))
    prompts = [sequences[row[0]].ids[: sequences[row[0]].prompt_length] for row in rows]
    length = max(map(len, prompts))
    ids = torch.tensor([[pad_id] * (length - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    tails, places, start = [], [], len(rows)
    for group in groups:
        group_tails = _tails(sequences, group, prompt_of, pad_id)
        width = group_tails.input_ids.shape[1]
        for offset, number in enumerate(group):
            first = start + offset * width
            own = range(first, first + sequences[number].response_length - 1)
            places += [prompt_of[number], *own]
        start += group_tails.input_ids.numel()
        tails.append(group_tails)
    plain = collate([sequences[number] for number in members], pad_id)
    fields = vars(plain) | {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": places_of(mask),
        "position": torch.tensor(places),
    }
    return PrefixBatch(**fields, tails=tuple(tails)), members


def places_of(mask: Int[Tensor, "rows length"]) -> Int[Tensor, "rows length"]:
    """Position of every token in its text; meaningless on padding."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def _split_forwards(
    sequences: Sequence[Encoded], members: Sequence[int], batch_tokens: int
) -> Iterator[list[int]]:
    """Splits members, sorted by falling response length, into forwards."""
    group: list[int] = []
    prompt = 0
    for number in members:
        prompt = max(prompt, sequences[number].prompt_length)
        own = sequences[number].response_length
        longest = sequences[group[0]].response_length if group else own
        padded = len(group) * longest > ENOUGH and own < FILLED * longest
        if group and (padded or (len(group) + 1) * (prompt + longest) > batch_tokens):
            yield group
            group, prompt = [], sequences[number].prompt_length
        group.append(number)
    yield group


def _tails(
    sequences: Sequence[Encoded], group: Sequence[int], prompt_of: dict[int, int], pad_id: int
) -> Tails:
    own = [sequences[number].ids[sequences[number].prompt_length : -1] for number in group]
    length = max(map(len, own))
    return Tails(
        prompt=torch.tensor([prompt_of[number] for number in group]),
        # Without a dtype, empty lists would become float tensors.
        input_ids=torch.tensor(
            [[*ids, *[pad_id] * (length - len(ids))] for ids in own], dtype=torch.long
        ),
        attention_mask=torch.tensor(
            [[1] * len(ids) + [0] * (length - len(ids)) for ids in own], dtype=torch.long
        ),
    )
