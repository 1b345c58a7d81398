"""Token maps out of a force map: the pushes of an updating pair's tokens on an answer's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dynolab.data.encode import Encoded
from dynolab.data.token_texts import token_strings
from dynolab.forces.map.analysis import Question
from dynolab.forces.map.force_map import ForceMap
from dynolab.results.study import TokenMap

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


MOST_CELLS = 60_000  # in one map: more than a screen can show


def token_maps(question: Question, force_map: ForceMap, count: int) -> list[TokenMap]:
    """`count` maps of an updating pair on an answer: on chosen answers first, by what pulls hardest
    down."""
    readable = []
    for row, (_, observed) in enumerate(question.observed):
        for pair, example in enumerate(question.updating):
            tokens = sum(response.response_length for response in example.named().values())
            if observed.response_length * tokens <= MOST_CELLS:
                readable.append((row, pair))

    def order(cell: tuple[int, int]) -> tuple[bool, float, tuple[int, int]]:
        row, pair = cell
        name = question.updating[pair].id
        columns = [n for n, response in enumerate(force_map.updating) if response.id == name]
        push = sum(float(force_map.block(row, n).sum()) for n in columns)
        return question.observed[row][0].kind != "chosen", push, cell

    maps = []
    for row, pair in sorted(readable, key=order)[:count]:
        probe, _ = question.observed[row]
        token_map = token_map_of(
            force_map,
            row,
            question.updating[pair].id,
            question.tokenizer,
            observed_id=probe.pair_id,
            observed_kind=probe.kind,
            stage=question.objective.name,
            step=question.step,
            learning_rate=question.learning_rate,
        )
        maps.append(token_map)
    return maps


def token_map_of(
    force_map: ForceMap,
    row: int,
    updating_id: str,
    tokenizer: PreTrainedTokenizerBase,
    **labels: Any,
) -> TokenMap:
    """A force map's block of one observed response and one updating example, with its tokens.

    **Arguments:** `labels`: the other fields of the `TokenMap`.
    """
    columns = [n for n, response in enumerate(force_map.updating) if response.id == updating_id]
    columns.sort(key=lambda n: force_map.updating[n].side != "chosen")
    tokens: dict[str, list[str]] = {"chosen": [], "rejected": []}
    for n in columns:
        response = force_map.updating[n]
        tokens[response.side] += token_strings(Encoded(response.tokens, 0), tokenizer)
    return TokenMap(
        updating_id=updating_id,
        observed_tokens=token_strings(Encoded(force_map.observed[row], 0), tokenizer),
        chosen_tokens=tokens["chosen"],
        rejected_tokens=tokens["rejected"],
        force=np.concatenate([force_map.block(row, n) for n in columns], axis=1).tolist(),
        **labels,
    )
