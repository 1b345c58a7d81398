"""A few pairs' blocks of a force map, with their tokens, small enough to read."""

from __future__ import annotations

from dynolab.data.encode import Encoded
from dynolab.forces.map.analysis import Question
from dynolab.forces.map.force_map import ForceMap
from dynolab.forces.step.token_map import token_strings
from dynolab.results.study import TokenMap

MOST_CELLS = 60_000  # in one map: more than a screen can show


def token_maps(question: Question, whole: ForceMap, count: int) -> list[TokenMap]:
    """`count` maps of an updating pair on an answer: on chosen answers first, by what pulls hardest
    down."""
    updating_tokens = [
        sum(response.response_length for response in example.named().values())
        for example in question.updating
    ]
    sizes = {
        (row, pair): observed.response_length * tokens
        for row, (_, observed) in enumerate(question.observed)
        for pair, tokens in enumerate(updating_tokens)
    }
    readable = [cell for cell, size in sizes.items() if size <= MOST_CELLS]

    def order(cell: tuple[int, int]) -> tuple[bool, float, tuple[int, int]]:
        row, pair = cell
        name = question.updating[pair].id
        columns = [n for n, response in enumerate(whole.updating) if response.id == name]
        push = sum(float(whole.block(row, n).sum()) for n in columns)
        return question.observed[row][0].kind != "chosen", push, cell

    return [_token_map(question, whole, *cell) for cell in sorted(readable, key=order)[:count]]


def _token_map(question: Question, whole: ForceMap, row: int, pair: int) -> TokenMap:
    probe, observed = question.observed[row]
    example = question.updating[pair]
    columns = [n for n, response in enumerate(whole.updating) if response.id == example.id]
    columns.sort(key=lambda n: whole.updating[n].side != "chosen")
    tokens: dict[str, list[str]] = {"chosen": [], "rejected": []}
    for response in (whole.updating[n] for n in columns):
        tokens[response.side] += token_strings(Encoded(response.tokens, 0), question.tokenizer)
    blocks = [whole.block(row, n) for n in columns]
    return TokenMap(
        stage=question.objective.name,
        step=question.step,
        observed_id=probe.pair_id,
        observed_kind=probe.kind,
        updating_id=example.id,
        learning_rate=question.learning_rate,
        observed_tokens=token_strings(observed, question.tokenizer),
        chosen_tokens=tokens["chosen"],
        rejected_tokens=tokens["rejected"],
        force=[[float(x) for block in blocks for x in block[m]] for m in range(len(blocks[0]))],
    )
