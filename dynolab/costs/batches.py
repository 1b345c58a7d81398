"""The micro-batches that a training will draw, from the lengths of its rows or of known ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from dynolab.costs.traced import MicroBatch
from dynolab.data.batches import draw, responses_of
from dynolab.data.encode import Encoded, EncodedExample
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
    present = [answer for _, answer in responses_of(example, sides)]
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
    rows = list(chain.from_iterable(example.rows for example in examples))
    alone = len(rows) == sum(example.answers for example in examples)
    return MicroBatch(len(rows), max(rows) + alone, sum(member.responses for member in examples))


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


_HH = """
20/6/4 40/8/13 46/12/15 45/34/6 21/58/11 73/12/15 35/17/58 25/60/32 58/35/32 63/19/47
92/18/27 109/6/28 107/8/33 18/39/102 26/127/13 14/95/67 145/20/16 110/43/33 24/79/88
124/48/34 155/56/6 145/46/30 176/16/36 138/52/49 130/31/85 184/46/28 128/77/64 263/17/4
233/19/39 118/114/74 126/91/104 261/62/16 23/79/257 18/202/160 385/12/3 315/29/101
337/56/78 179/180/172 444/71/106 619/161/171
"""

KNOWN = {
    "Anthropic/hh-rlhf": tuple(tuple(map(int, row.split("/"))) for row in _HH.split()),
}
"""Data set of the Hub → tokens of prompt, chosen and rejected answer of some of its rows: of 500
helpful dialogues in Pythia's tokens, the shortest, the longest and those at equal steps between."""


def stand_in_rows(name: str | None, count: int, limit: int) -> list[EncodedExample]:
    """Rows of the lengths of a data set's, or, where these are not known, of the limit.

    **Arguments:** `limit`: longest row in tokens; a longer one loses the beginning of its prompt.
    """
    lengths = KNOWN.get(name or "", ((limit // 2, limit - limit // 2, limit - limit // 2),))
    rows = [_row(str(number), length, limit) for number, length in enumerate(lengths)]
    return [rows[number % len(rows)] for number in range(count)]


def _row(name: str, lengths: tuple[int, ...], limit: int) -> EncodedExample:
    prompt, chosen, rejected = lengths
    prompt_length = max(1, min(prompt, limit - max(chosen, rejected)))
    first, second = (
        Encoded((0,) * (prompt_length + answer), prompt_length) for answer in (chosen, rejected)
    )
    return EncodedExample(name, first, second)
