"""Token batches: padded sequences and a flat list of the response tokens to be scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any, Self, TypeVar

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from dynolab.data.encode import Encoded, EncodedExample
from dynolab.errors import ConfigError

CHOSEN, REJECTED = 0, 1

Item = TypeVar("Item")


@dataclass(frozen=True)
class Totals:
    """Global denominators of one optimizer step, over all ranks and micro-batches.

    Dividing by these makes loss and gradient independent of micro-batches, padding and ranks. An
    example has one sequence per side that is trained on; a group has one per completion.
    `chosen_tokens` counts those of chosen answers; groups have none.
    """

    examples: int
    tokens: int
    sequences: int
    chosen_tokens: int = 0


@dataclass(frozen=True)
class TopTokens:
    """The likeliest tokens of the sampling policy at every response position.

    `token[:, k]` has rank k + 1 and log-probability `logp[:, k]` under the policy that sampled;
    `entropy` is that policy's, in nats.
    """

    token: Int[Tensor, "tokens ranks"]
    logp: Float[Tensor, "tokens ranks"]
    entropy: Float[Tensor, " tokens"]


@dataclass(frozen=True)
class TokenBatch:
    """Padded sequences with their response tokens listed flat.

    Response token n is `token[n]`, predicted by the logits of sequence `sequence[n]` at position
    `position[n]` (the position before the token's own). Sequence b is side `side[b]` (0 chosen,
    1 rejected) of example `example[b]` of this batch.

    Likelihoods are those of `softmax(logits / temperature)`. Only some objectives read the optional
    fields. Per response token: `reference`, its log-probability under the reference; `advantage`,
    the factor of its push; `dose`, a further factor on it, chosen by the step; `old`, its
    log-probability under the policy that sampled it (None: the current policy, as in the first
    update after sampling); `anchor`, how hard it is held to `old`; `top`, the sampling policy's
    likeliest tokens. Per sequence: `wins`, the probability that the response is preferred to one of
    the policy's; `weight`, the factor of its example's loss. Of the whole step: `drift`, the
    policy's mean log-ratio on unrelated answers.
    """

    input_ids: Int[Tensor, "rows length"]
    attention_mask: Int[Tensor, "rows length"]
    position_ids: Int[Tensor, "rows length"]
    sequence: Int[Tensor, " tokens"]
    position: Int[Tensor, " tokens"]
    token: Int[Tensor, " tokens"]
    example: Int[Tensor, " sequences"]
    side: Int[Tensor, " sequences"]
    ids: tuple[str, ...]
    totals: Totals
    reference: Float[Tensor, " tokens"] | None = None
    advantage: Float[Tensor, " tokens"] | None = None
    old: Float[Tensor, " tokens"] | None = None
    anchor: Float[Tensor, " tokens"] | None = None
    top: TopTokens | None = None
    wins: Float[Tensor, " sequences"] | None = None
    weight: Float[Tensor, " sequences"] | None = None
    drift: float | None = None
    dose: Float[Tensor, " tokens"] | None = None
    temperature: float = 1.0

    @property
    def targets(self) -> Int[Tensor, "tokens targets"]:
        """Response tokens in the first column, then the likeliest tokens where there are any."""
        token = self.token[:, None]
        return token if self.top is None else torch.cat([token, self.top.token], dim=1)

    @property
    def token_row(self) -> Int[Tensor, " tokens"]:
        """Row of `input_ids` in which every response token is predicted."""
        return self.sequence

    @property
    def token_side(self) -> Int[Tensor, " tokens"]:
        """Side of every response token."""
        return self.side[self.sequence]

    @property
    def sequence_length(self) -> Int[Tensor, " sequences"]:
        """Number of response tokens of every sequence."""
        return self.sequence_sum(torch.ones_like(self.sequence))

    def sequence_sum(self, values: Num[Tensor, "tokens ..."]) -> Num[Tensor, "sequences ..."]:
        """Sum of per-token quantities over each sequence's response."""
        zeros = values.new_zeros(len(self.side), *values.shape[1:])
        return zeros.index_add(0, self.sequence, values)

    def by_side(
        self, values: Num[Tensor, " sequences"], sides: int = 2
    ) -> tuple[Num[Tensor, " _"], ...]:
        """A value per sequence split into those of each side, in the order of the sequences.

        **Arguments:** `sides`: how many the batch has; every example has one sequence of each.
        """
        return values[self.side_order].chunk(sides)

    @property
    def side_order(self) -> Int[Tensor, " sequences"]:
        """The sequences of the first side, then those of the next."""
        # Sides have equal parts of it. A mask of a side would make the host wait for its size.
        return self.side.argsort(stable=True)

    def to(self, device: torch.device | str) -> Self:
        """Moves the batch to a device."""
        batch: Self = _moved(self, torch.device(device))
        return batch


def _moved(value: Any, device: torch.device) -> Any:
    """The tensors of a data class, and of those within it, on a device."""
    if isinstance(value, Tensor):
        if device.type == "cuda" and value.device.type == "cpu":
            # From pinned memory, so that the host does not wait for the transfer.
            return value.pin_memory().to(device, non_blocking=True)
        return value.to(device)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: _moved(getattr(value, part.name), device) for part in fields(value)}
        return replace(value, **parts)
    return tuple(_moved(item, device) for item in value) if isinstance(value, tuple) else value


def collate(
    sequences: Sequence[Encoded],
    pad_id: int,
    *,
    example: Sequence[int] | None = None,
    side: Sequence[int] | None = None,
    ids: Sequence[str] = (),
    totals: Totals | None = None,
) -> TokenBatch:
    """Pads sequences on the right and lists their response tokens.

    **Arguments:**

    - `sequences`: encoded prompt-response sequences.
    - `example`, `side`: per sequence; by default each is the chosen side of its own example.
    - `totals`: global denominators; by default this batch's own.
    """
    length = max(len(sequence.ids) for sequence in sequences)
    input_ids = torch.full((len(sequences), length), pad_id, dtype=torch.long)
    mask = torch.zeros((len(sequences), length), dtype=torch.long)
    rows, positions, tokens = [], [], []
    for row, sequence in enumerate(sequences):
        ids_of_row = torch.tensor(sequence.ids, dtype=torch.long)
        input_ids[row, : len(sequence.ids)] = ids_of_row
        mask[row, : len(sequence.ids)] = 1
        places = torch.tensor(sequence.positions, dtype=torch.long)
        rows.append(torch.full_like(places, row))
        positions.append(places - 1)
        tokens.append(ids_of_row[places])
    return TokenBatch(
        input_ids=input_ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        sequence=torch.cat(rows),
        position=torch.cat(positions),
        token=torch.cat(tokens),
        example=torch.tensor(list(example or range(len(sequences))), dtype=torch.long),
        side=torch.tensor(list(side or [CHOSEN] * len(sequences)), dtype=torch.long),
        ids=tuple(ids),
        totals=totals or totals_of(len(sequences), [(CHOSEN, member) for member in sequences]),
    )


def collate_examples(
    examples: Sequence[EncodedExample], pad_id: int, sides: Sequence[int], totals: Totals
) -> TokenBatch:
    """Collates the given sides of examples; the sides of one example are neighbours."""
    sequences, example_of, side_of = [], [], []
    for number, example in enumerate(examples):
        for side, sequence in responses_of(example, sides):
            sequences.append(sequence)
            example_of.append(number)
            side_of.append(side)
    ids = [example.id for example in examples]
    batch = collate(sequences, pad_id, example=example_of, side=side_of, ids=ids, totals=totals)
    wins = [
        example.wins[side] for example in examples if example.wins is not None for side in sides
    ]
    weights = [1.0 if example.weight is None else example.weight for example in examples]
    return replace(
        batch,
        wins=torch.tensor(wins, dtype=torch.float64) if len(wins) == len(sequences) else None,
        weight=torch.tensor(weights, dtype=torch.float64)[batch.example]
        if any(example.weight is not None for example in examples)
        else None,
    )


def count_totals(examples: Sequence[EncodedExample], sides: Sequence[int]) -> Totals:
    """Global denominators of one optimizer step on these examples."""
    return totals_of(
        len(examples),
        list(chain.from_iterable(responses_of(example, sides) for example in examples)),
    )


def totals_of(examples: int, responses: Sequence[tuple[int, Encoded]]) -> Totals:
    """Denominators of so many examples and of their responses, each with its side."""
    lengths = [(side, sequence.response_length) for side, sequence in responses]
    return Totals(
        examples=examples,
        tokens=sum(length for _, length in lengths),
        sequences=len(lengths),
        chosen_tokens=sum(length for side, length in lengths if side == CHOSEN),
    )


def responses_of(example: EncodedExample, sides: Sequence[int]) -> list[tuple[int, Encoded]]:
    """The responses trained on with their sides: of a pair one a side, of a labelled row its own.

    **Raises:** `ConfigError` if a side has no response.
    """
    if example.label is not None:
        return [(CHOSEN if example.label else REJECTED, example.chosen)]
    by_side = {CHOSEN: example.chosen, REJECTED: example.rejected}
    present = [(side, sequence) for side in sides if (sequence := by_side[side]) is not None]
    if len(present) < len(sides):
        raise ConfigError(
            f"updating example {example.id}", None, "its objective needs a rejected response"
        )
    return present


def by_length(encoded: Sequence[Encoded], batch_tokens: int) -> Iterator[list[int]]:
    """Yields batches of sequence indices, longest sequences first, to keep padding small.

    Sequences × padded length of a batch stay within `batch_tokens`; a longer sequence gets a batch
    of its own. The largest batch comes first, so that one too large for memory fails at once.
    """
    batch: list[int] = []
    for number in sorted(range(len(encoded)), key=lambda number: -len(encoded[number].ids)):
        if batch and (len(batch) + 1) * len(encoded[batch[0]].ids) > batch_tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def in_groups(items: Sequence[Item], sizes: Sequence[int], room: int) -> Iterator[list[Item]]:
    """Yields groups of consecutive items whose sizes add up to `room` at most.

    A larger item gets a group of its own.
    """
    group: list[Item] = []
    size_so_far = 0
    for item, size in zip(items, sizes, strict=True):
        if group and size_so_far + size > room:
            yield group
            group, size_so_far = [], 0
        group.append(item)
        size_so_far += size
    if group:
        yield group


@lru_cache(maxsize=2)  # an epoch's order serves all its steps
def _order(rows: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def draw(step: int, batch_size: int, rows: int, seed: int) -> list[int]:
    """Row indices of an optimizer step, taken in order from one seeded permutation per epoch.

    A pure function of its arguments, so that a resumed run draws the same batches as an
    uninterrupted one without a stored cursor.
    """
    drawn: list[int] = []
    start = step * batch_size
    while len(drawn) < batch_size:
        epoch, offset = divmod(start + len(drawn), rows)
        drawn += _order(rows, seed * 1_000_003 + epoch)[offset : offset + batch_size - len(drawn)]
    return drawn
