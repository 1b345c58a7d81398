"""The micro-batches that a training will draw, from the lengths of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dynolab.costs.traced import MicroBatch
from dynolab.data.batches import CHOSEN, draw
from dynolab.data.encode import EncodedExample
from dynolab.data.packing import packed_length, plan_rows
from dynolab.training.config import LoopConfig


@dataclass(frozen=True)
class Lengths:
    """Tokens of the rows that an example takes, packed; its answers and their response tokens."""

    rows: tuple[int, ...]
    answers: int
    responses: int


MOST_STEPS = 2_000
"""Steps whose batches are drawn; a longer training is taken to go on like them."""


def lengths_of(example: EncodedExample, sides: Sequence[int], width: float) -> Lengths:
    """The rows of an example: its answers share one row with their prompt where that is cheaper."""
    answers = [example.chosen if side == CHOSEN else example.rejected for side in sides]
    present = [answer for answer in answers if answer is not None]
    rows = plan_rows(present, width)
    responses = sum(answer.response_length for answer in present)
    return Lengths(tuple(packed_length(present, row) for row in rows), len(present), responses)


def micro_batches(
    config: LoopConfig, lengths: Sequence[Lengths], steps: int
) -> Iterator[MicroBatch]:
    """The micro-batches of all ranks in the first `steps` steps, as `Trainer` forms them."""
    ranks, parts = config.engine.ranks, config.accumulation
    for step in range(steps):
        drawn = draw(step, config.batch_size, len(lengths), config.seed)
        for rank in range(ranks):
            mine = drawn[rank::ranks]
            edges = [len(mine) * part // parts for part in range(parts + 1)]
            for start, stop in pairwise(edges):
                yield joined([lengths[row] for row in mine[start:stop]])


def joined(examples: Sequence[Lengths]) -> MicroBatch:
    """One forward of some examples; where no answers share a row, rows hold their last token."""
    rows = [length for example in examples for length in example.rows]
    alone = len(rows) == sum(example.answers for example in examples)
    return MicroBatch(len(rows), max(rows) + alone, sum(each.responses for each in examples))


def training_batches(config: LoopConfig, lengths: Sequence[Lengths]) -> tuple[int, MicroBatch]:
    """The padded tokens of a training's forwards, and its largest micro-batch.

    The largest has the most padded positions; its response tokens are the most of any.
    """
    steps = min(config.steps, MOST_STEPS)
    batches = list(micro_batches(config, lengths, steps))
    tokens = sum(batch.rows * batch.length for batch in batches) * config.steps // steps
    largest = max(batches, key=lambda batch: (batch.rows * batch.length, batch.length))
    responses = max(batch.responses for batch in batches)
    return tokens, MicroBatch(largest.rows, largest.length, responses)
