"""A few pairs' blocks of a force map, with their tokens, for a person to read."""

from __future__ import annotations

from dynolab.data.encode import Encoded
from dynolab.forces.map.analysis import Question
from dynolab.forces.map.force_map import ForceMap
from dynolab.forces.step.token_map import token_strings
from dynolab.results.study import TokenMap

MOST_CELLS = 20_000  # of one map: more than a screen can show


def token_maps(question: Question, found: ForceMap, count: int) -> list[TokenMap]:
    """The maps of an updating pair on an observed answer, by rising size, own answers first."""
    sizes = {
        (row, pair): observed.response_length * _updating_tokens(question, pair)
        for row, (_, observed) in enumerate(question.observed)
        for pair in range(len(question.updating))
    }
    readable = [at for at, size in sizes.items() if size <= MOST_CELLS]

    def place(at: tuple[int, int]) -> tuple[bool, int, tuple[int, int]]:
        row, pair = at
        own = question.observed[row][0].pair_id == question.updating[pair].id
        return not own, _updating_tokens(question, pair), at

    return [_token_map(question, found, *at) for at in sorted(readable, key=place)[:count]]


def _updating_tokens(question: Question, pair: int) -> int:
    return sum(one.response_length for one in question.updating[pair].named().values())


def _token_map(question: Question, found: ForceMap, row: int, pair: int) -> TokenMap:
    probe, observed = question.observed[row]
    example = question.updating[pair]
    columns = [at for at, one in enumerate(found.updating) if one.id == example.id]
    columns.sort(key=lambda at: found.updating[at].side != "chosen")
    tokens: dict[str, list[str]] = {"chosen": [], "rejected": []}
    for one in (found.updating[at] for at in columns):
        tokens[one.side] += token_strings(Encoded(one.tokens, 0), question.tokenizer)
    blocks = [found.block(row, at) for at in columns]
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
