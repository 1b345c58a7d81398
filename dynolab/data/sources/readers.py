"""Reads records into examples, prompts and probe rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from typing import Any

from dynolab.data.chat import (
    NO_WRITER,
    Conversation,
    Message,
    Texts,
    Write,
    is_messages,
    messages_of,
)
from dynolab.data.probes.build import Watched
from dynolab.data.rows import Example, ProbeRow, PromptRow, common_length
from dynolab.data.sources.columns import ASSISTANT, as_pairs, form_of
from dynolab.data.sources.files import Record, place
from dynolab.errors import ConfigError, reading

STORED_KINDS = {
    "chosen": "the data",
    "chosen_initial": "stored: sampled from the untrained policy",
    "chosen_selfr": "stored: rephrased by the policy itself",
    "chosen_gptsemantic": "stored: same meaning in other words, by a judge-class model",
    "chosen_gptformat": "stored: same format with another meaning, by a judge-class model",
    "rejected": "the data",
    "reject_gptsemantic": "stored: same meaning in other words, by a judge-class model",
    "reject_gptformat": "stored: same format with another meaning, by a judge-class model",
    "irr_train": "stored: chosen answer of another training prompt",
    "irr_test": "stored: chosen answer of a prompt outside the training set",
    "irr_hum": "stored: an unrelated sentence, by a judge-class model",
    "random_permute": "stored: words of the chosen answer, shuffled",
    "random_nonhum": "stored: words of irr_test, shuffled",
}
"""Response fields of the papers' probe files and how their authors made them."""


def pairs(records: Sequence[Record], origin: str, write: Write | None) -> Iterator[Example | None]:
    """Reads answers to prompts, one or two a prompt, in any of the forms of `columns`.

    Texts are read as they are written, messages as the writer writes them. If a prompt is missing,
    or is a text before conversations (which only repeats their question), what both answers begin
    with is the prompt: messages, or characters. All turns after it are the answer. `id` and `wins`
    (`Example.wins`, a list of two numbers) and `weight` are kept if given.

    Yields None for a record that holds no pair, such as one of equal scores.

    **Arguments:** `write`: writes messages; None if no setting names a writer.

    **Raises:** `ConfigError` that names the first record that cannot be read, and how many cannot.
    """
    if records and form_of(records[0]) is None:
        raise ConfigError(
            place(records[0], origin, 0),
            sorted(records[0]),
            "needs columns prompt and chosen (and rejected), or messages; name them in "
            "data.columns, or set data.format",
        )
    # Pairs are made twice rather than kept: of most data the first one has both answers.
    seen = as_pairs(records, origin)
    both = any(pair and pair.get("rejected") is not None for _, _, pair in seen)
    faults: list[ConfigError] = []
    for number, record, pair in as_pairs(records, origin):
        where = place(record, origin, number)
        try:
            if pair is None:
                yield None
                continue
            texts = _texts(pair, _sides(pair, where, both), record, where, write)
            yield None if texts is None else _example(number, record, texts, where)
        except ConfigError as error:
            if isinstance(error.__cause__, TimeoutError):  # others may take as long
                raise
            faults.append(error)
    if faults:
        first = faults[0]
        count = sum(1 for _ in as_pairs(records, origin))
        more = f" (the first of {len(faults)} such rows among {count})"
        raise ConfigError(
            first.field, first.value, first.remedy + (more if len(faults) > 1 else "")
        )


def unpaired(
    records: Sequence[Record], origin: str, write: Write | None
) -> Iterator[Example | None]:
    """Reads rows of a prompt, a completion and its label, true or false, as `pairs` reads them."""
    for number, record in enumerate(records):
        label = record.get("label")
        if not isinstance(label, bool):
            where = place(record, origin, number)
            raise ConfigError(f"{where}, column label", label, "must be true or false")
    plain = [{name: x for name, x in labelled.items() if name != "label"} for labelled in records]
    for record, example in zip(records, pairs(plain, origin, write), strict=True):
        yield example and example.model_copy(update={"label": record["label"]})


def _sides(pair: dict[str, Any], where: str, both: bool) -> list[Any]:
    """The answers of a pair, texts or messages."""
    names = ["chosen", "rejected"] if both else ["chosen"]
    for name in names:
        if not isinstance(pair.get(name), str | list | Mapping) or pair[name] in ([], {}):
            raise ConfigError(
                f"{where}, column {name}",
                pair.get(name),
                "must be a text or a list of messages; correct these rows, or leave them out",
            )
    return [pair[name] for name in names]


def _texts(
    pair: dict[str, Any], sides: list[Any], record: Record, where: str, write: Write | None
) -> Texts | None:
    """Prompt and answers as they are trained on; None if two answers have no prompt in common."""
    prompt = pair.get("prompt")
    are_texts = all(isinstance(side, str) for side in sides)
    if are_texts and not is_messages(prompt) and "system" not in pair:
        if isinstance(prompt, str):
            return Texts(prompt, sides, None)
        if prompt is None and len(sides) == 2:
            return _apart(sides)
        raise ConfigError(
            f"{where}, column prompt",
            prompt if "prompt" in record else sorted(record),
            "needs a prompt, a text or messages; name the column that holds it in data.columns",
        )
    answers = [_turns(side, "assistant", f"{where}, answer") for side in sides]
    turns: list[Message] = []
    if is_messages(prompt) or (prompt is not None and answers[0][0]["role"] == "assistant"):
        turns = _turns(prompt, "user", f"{where}, column prompt")
    else:
        shared = _shared(*answers) if len(answers) == 2 else len(answers[0]) - 1
        turns, answers = answers[0][:shared], [answer[shared:] for answer in answers]
        if not turns and len(answers) == 2:
            return None
    if not turns or any(not side or side[-1]["role"] != "assistant" for side in answers):
        raise ConfigError(
            where,
            [[message["role"] for message in side] for side in (turns, *answers)],
            "a question must come first and an answer of the assistant last",
        )
    if pair.get("system"):
        turns = [{"role": "system", "content": pair["system"]}, *turns]
    return _written(Conversation(turns, answers), record, where, write)


def _written(row: Conversation, record: Record, where: str, write: Write | None) -> Texts:
    """A conversation as a writer writes it, with its record's tools and template options."""
    if write is None:
        raise ConfigError("data.chat_model", None, f"{where} holds chat messages: {NO_WRITER}")
    tools, options = record.get("tools"), record.get("chat_template_kwargs")
    with reading(f"{where}, column tools", str(tools)[:80], "give a list, or a list as JSON"):
        tools = json.loads(tools) if isinstance(tools, str) else tools
    if not isinstance(options, Mapping | None):
        field = f"{where}, column chat_template_kwargs"
        raise ConfigError(field, options, "must be settings by name, of the chat template")
    return write(replace(row, tools=tools, options=options or {}), where)


def _turns(value: object, role: str, where: str) -> list[Message]:
    """Messages; a text is one of a role."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return messages_of(value, where)


def _shared(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Number of items with which two sequences begin alike, less than all of the shorter one."""
    return min(common_length(first, second), min(len(first), len(second)) - 1)


def _apart(sides: Sequence[str]) -> Texts | None:
    """Two texts and their prompt: of HH up to the last turn, else what both begin with."""
    heads = [side.rpartition(ASSISTANT)[0] for side in sides]
    if all(ASSISTANT in side for side in sides):
        length = len(heads[0] + ASSISTANT) if heads[0] == heads[1] else 0
    else:
        length = _shared(*sides)
        length -= length > 0 and sides[0][length - 1] == " "
    return Texts(sides[0][:length], [side[length:] for side in sides], None) if length else None


def _example(number: int, record: Record, texts: Texts, where: str) -> Example:
    check_length(texts, where)
    fields = {"wins": _wins(record, where), "weight": _weight(record, where), "turn": texts.turn}
    return Example(
        id=_id(record, number),
        prompt=texts.prompt,
        chosen=texts.answers[0],
        rejected=texts.answers[1] if len(texts.answers) == 2 else None,
        # A row takes half a kilobyte more if fields are set that it does not have.
        **{name: value for name, value in fields.items() if value is not None},
    )


LONGEST_TEXT = 2_000_000
"""Characters of a row: no model reads more, and tokenizers take minutes for ten times as much."""


def check_length(texts: Texts, where: str) -> None:
    """Raises `ConfigError` for a row that no model can read."""
    length = len(texts.prompt) + max(map(len, texts.answers), default=0)
    if length > LONGEST_TEXT:
        remedy = f"no model reads more than {LONGEST_TEXT:,}; shorten this row, or leave it out"
        raise ConfigError(where, f"{length:,} characters", remedy)


def prompts(records: Iterable[Record], origin: str, write: Write | None) -> Iterator[PromptRow]:
    """Reads records with a `prompt`, a text or messages, and optionally its `answer`."""
    for number, record in enumerate(records):
        where = place(record, origin, number)
        prompt, expected = record.get("prompt"), record.get("answer")
        if isinstance(expected, bool) or not isinstance(expected, str | int | float | None):
            raise ConfigError(f"{where}, column answer", expected, "must be a text or a number")
        if not isinstance(prompt, str | list):
            raise ConfigError(
                where,
                sorted(record) if prompt is None else prompt,
                "needs a column prompt with a text or messages; name it in data.columns",
            )
        texts = Texts(prompt, [], None) if isinstance(prompt, str) else None
        if texts is None:
            turns = messages_of(prompt, f"{where}, column prompt")
            texts = _written(Conversation(turns), record, where, write)
        check_length(texts, where)
        yield PromptRow(
            id=_id(record, number),
            prompt=texts.prompt,
            answer=None if expected is None else str(expected),
            turn=texts.turn,
        )


def word_problems(
    records: Iterable[Record], origin: str, write: Write | None
) -> Iterator[PromptRow]:
    """Reads GSM8K: a `question`, and as `answer` a solution that ends in `#### ` and a number.

    Without a writer of messages the prompt is `Question: …\\nAnswer:`, as in evaluations.
    """
    for number, record in enumerate(records):
        where = place(record, origin, number)
        for column in ("question", "answer"):
            if not isinstance(record.get(column), str):
                raise ConfigError(
                    f"{where}, column {column}",
                    record.get(column),
                    "must be a text; name its column in data.columns",
                )
        question = record["question"]
        texts = Texts(f"Question: {question}\nAnswer:", [], None)
        if write is not None:
            texts = write(Conversation([{"role": "user", "content": question}]), where)
        yield PromptRow(
            id=row_name(number), prompt=texts.prompt, answer=record["answer"], turn=texts.turn
        )


def stored_kinds(records: Iterable[Record]) -> tuple[str, ...]:
    """The kinds that a probe file stores: those that any of its records has."""
    fields = set(chain.from_iterable(records))
    return tuple(kind for kind in STORED_KINDS if kind in fields)


def stored_probes(
    record: Record, watched: Watched, kinds: Iterable[str], origin: str
) -> list[ProbeRow]:
    """Probe rows of the responses that a probe file stores for one pair.

    `null` means that there is none. An empty response is kept.

    **Raises:** `ConfigError` for a field that other records have and this one lacks, and for one
    that is not a text.
    """
    rows = []
    for kind in kinds:
        field = f"{place(record, origin, watched.example.id)}, field {kind}"
        if kind not in record:
            raise ConfigError(
                field,
                sorted(record),
                "is missing here but present in other rows; add it, or null for no response",
            )
        response = record[kind]
        if response is None:
            continue
        if not isinstance(response, str):
            raise ConfigError(field, response, "must be a text, or null for no response")
        is_answer = kind in ("chosen", "rejected")
        rows.append(
            (watched.row if is_answer else watched.made)(kind, response, STORED_KINDS[kind])
        )
    return rows


def _wins(record: Record, place: str) -> tuple[float, float] | None:
    """The probability of each answer to be preferred to one of the policy, if given."""
    wins = record.get("wins")
    if wins is None:
        return None
    if (
        not isinstance(wins, list)
        or len(wins) != 2
        or any(isinstance(win, bool) or not isinstance(win, int | float) for win in wins)
        or not all(0 <= win <= 1 for win in wins)
    ):
        raise ConfigError(
            f"{place}, column wins",
            wins,
            "must be two probabilities, of the chosen and of the rejected answer to be preferred "
            "to one of the policy",
        )
    return float(wins[0]), float(wins[1])


def _weight(record: Record, place: str) -> float | None:
    """The factor of the row's loss, if given."""
    weight = record.get("weight")
    if weight is None:
        return None
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < inf:
        raise ConfigError(f"{place}, column weight", weight, "must be a number, 0 or more")
    return float(weight)


def row_name(number: int) -> str:
    """Id of a row that has none."""
    return f"row-{number:06d}"


def _id(record: Record, number: int) -> str:
    return row_name(number) if record.get("id") is None else str(record["id"])
