"""Batches in which a prompt runs once and its responses go on from what it left behind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from dynolab.data.batches import TokenBatch, collate
from dynolab.data.encode import Encoded
from dynolab.data.packing import Row, packed_length, plan_rows, rows_by_length

ENOUGH, FILLED = 1024, 0.85
"""A forward of that many tokens takes no further response that would fill less of its row."""


@dataclass(frozen=True)
class Tails:
    """Responses of one forward without their last tokens, which predict nothing."""

    prompt: Int[Tensor, " responses"]
    """Row of the prompt that each goes on from."""

    input_ids: Int[Tensor, "responses length"]
    attention_mask: Int[Tensor, "responses length"]

    def to(self, device: torch.device | str) -> Tails:
        """The same on another device."""
        return Tails(*(value.to(device) for value in vars(self).values()))


@dataclass(frozen=True, kw_only=True)
class PrefixBatch(TokenBatch):
    """A token batch whose `input_ids` are prompts, padded on the left, with responses apart.

    Prompts end at the last place of their rows, so that a response's tokens come right behind
    them. `position[n]` counts through the hidden states of all forwards: the prompts' ends, then
    the places of each of `tails`, row by row.

    Beside packed rows (`PackedBatch`) a token of a response meets no other response at all: a
    masked kernel forms every pair of a packed row. The price is a second forward, and copies of
    the prompts' keys and values.
    """

    tails: tuple[Tails, ...]

    @property
    def token_row(self) -> Int[Tensor, " tokens"]:
        """Row of `input_ids` with every response token's prompt."""
        starts = torch.cat([tail.prompt for tail in self.tails])
        return starts[self.sequence]

    def to(self, device: torch.device | str) -> PrefixBatch:
        """The same batch on another device."""
        moved = super().to(device)
        assert isinstance(moved, PrefixBatch)
        return replace(moved, tails=tuple(tail.to(device) for tail in self.tails))


def plan_prefixes(
    sequences: Sequence[Encoded], batch_tokens: int, shared: bool
) -> Iterator[list[Row]]:
    """Rows of sequences with one prompt, batch by batch.

    **Arguments:**

    - `batch_tokens`: bound of a batch's tokens, a prompt's counted once.
    - `shared`: whether prompts are shared; else every sequence is a row, and the bound is one of
      rows × padded length.
    """
    if not shared:
        alone = plan_rows(sequences, None, batch_tokens)
        yield from rows_by_length(sequences, alone, batch_tokens)
        return
    batch: list[Row] = []
    size = 0
    # Prompts of one length side by side: a response sees the padding of the longest among them.
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
    sequences: Sequence[Encoded], rows: Sequence[Row], pad_id: int, batch_tokens: int
) -> tuple[TokenBatch, list[int]]:
    """Batch of the sequences of some rows, and which sequences they are, in the batch's order.

    **Arguments:**

    - `batch_tokens`: bound of responses × padded length, their prompts' included, of a forward.
    """
    if all(len(row) == 1 for row in rows):
        members = [row[0] for row in rows]
        return collate([sequences[number] for number in members], pad_id), members
    prompt_of = {number: place for place, row in enumerate(rows) for number in row}
    members = sorted(prompt_of, key=lambda number: -sequences[number].response_length)
    groups = list(_groups(sequences, members, batch_tokens))
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
            behind = range(first, first + sequences[number].response_length - 1)
            places += [prompt_of[number], *behind]
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
    """Position of every token in its text; padding has some."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def _groups(
    sequences: Sequence[Encoded], members: Sequence[int], batch_tokens: int
) -> Iterator[list[int]]:
    """Members, which come by falling response length, forward by forward."""
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
        # Tails of no tokens would make float tensors of their own accord.
        input_ids=torch.tensor(
            [[*ids, *[pad_id] * (length - len(ids))] for ids in own], dtype=torch.long
        ),
        attention_mask=torch.tensor(
            [[1] * len(ids) + [0] * (length - len(ids)) for ids in own], dtype=torch.long
        ),
    )
