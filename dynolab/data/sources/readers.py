"""Reads records of known formats into examples and probe rows."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic_core import from_json

from dynolab.data.chat import Message, Write, messages_of
from dynolab.data.probes.build import Watched
from dynolab.data.rows import Example, ProbeRow, PromptRow, answer
from dynolab.errors import ConfigError, reading, to_install

Record = Mapping[str, Any]


class Line(dict[str, Any]):
    """A record of a JSON-lines file, with its line number."""

    def __init__(self, record: Mapping[str, Any], number: int) -> None:
        super().__init__(record)
        self.number = number


ASSISTANT = "\n\nAssistant:"
"""Opens a turn of the assistant in raw HH transcripts (Bai et al., arXiv 2204.05862)."""

_FORMATS = {
    "pairs": "pairs",
    "hh": "hh (whole transcripts, as Anthropic's)",
    "chat": "chat (lists of messages; data.chat_model names the model whose template writes them)",
}

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


def read_records(file: Path, field: str = "data.path") -> Iterator[dict[str, Any]]:
    """Reads the rows of a Parquet file, or the objects of a JSON-lines file, plain or gzipped.

    **Arguments:** `field`: the setting that names the file, for messages.

    **Raises:** `ConfigError` for a damaged file, with the line number if it has lines, and for one
    that unpacks to more than 4 GiB.
    """
    return _table(file, field) if file.suffix == ".parquet" else _lines(file, field)


def hub_records(
    field: str, name: str, split: str, revision: str | None, folder: str | None = None
) -> Iterator[dict[str, Any]]:
    """Reads a split of a Hub data set, or of a folder in it; `ConfigError` if it does not load."""
    from datasets import load_dataset

    remedy = f"give a data set that loads with hub_split = {split!r}"
    remedy += f" and hub_folder = {folder!r}" if folder else ""
    with reading(field, name, remedy):
        for record in load_dataset(name, data_dir=folder, split=split, revision=revision):
            yield dict(record)


def with_replaced_texts(
    records: Iterable[dict[str, Any]], texts: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Records whose values, except ids and roles, hold the replacement of every text.

    **Arguments:** `texts`: text → its replacement; of two that begin alike the longer one counts.
    """
    if not texts:
        yield from records
        return
    pattern = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))

    def replaced(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(lambda match: texts[match[0]], value)
        if isinstance(value, list):
            return [replaced(item) for item in value]
        if isinstance(value, Mapping):
            return {
                name: item if name in ("id", "role") else replaced(item)
                for name, item in value.items()
            }
        return value

    for record in records:
        record.update(replaced(record))
        yield record


def format_of(record: Record) -> Literal["pairs", "hh", "chat"]:
    """The format that a record looks like: of the three that hold two answers."""
    answer_field = record.get("chosen", record.get("messages"))
    if isinstance(answer_field, list):
        return "chat"
    if isinstance(answer_field, str) and "prompt" not in record and ASSISTANT in answer_field:
        return "hh"
    return "pairs"


def _table(file: Path, field: str) -> Iterator[dict[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError(
            field, file.name, f"Parquet needs pyarrow; {to_install('train')}"
        ) from error
    size = 0
    with (
        reading(field, file.name, f"write it again, or {_OTHER_FILE}"),
        parquet.ParquetFile(file) as table,
    ):
        groups = range(table.metadata.num_row_groups)
        sizes = [table.metadata.row_group(group).total_byte_size for group in groups]
        _check_size(file, sum(sizes), field)
        # A value stored once can belong to every row of its group, but is no larger than the group.
        rows = min(_ROWS_AT_ONCE, max(1, _BATCH_BYTES // max([1, *sizes])))
        for batch in table.iter_batches(batch_size=rows):
            size += batch.nbytes + _MIN_ROW_BYTES * batch.num_rows
            _check_size(file, size, field)
            yield from batch.to_pylist()


def _lines(file: Path, field: str) -> Iterator[dict[str, Any]]:
    """Reads JSON lines; raises `ConfigError` with the number of a bad line."""
    size = 0
    with contextlib.ExitStack() as stack:
        with reading(field, file.name, _OTHER_FILE):
            raw = stack.enter_context(file.open("rb"))
            lines = gzip.GzipFile(fileobj=raw) if file.suffix == ".gz" else raw
        for number in itertools.count(1):
            with reading(field, f"{file.name} line {number}", _OTHER_FILE):
                line = lines.readline(_MAX_BYTES)
                if not line:
                    return
                size += len(line)
                _check_size(file, size, field)
                record = from_json(line) if line.strip() else None
            if not line.strip():
                continue
            if not isinstance(record, dict):
                raise ConfigError(
                    f"{file.name} line {number}",
                    line.decode().strip()[:80],
                    "every line must be a JSON object, one row each",
                )
            yield Line(record, number)


def _check_size(file: Path, size: int, field: str) -> None:
    """Raises for too many bytes: a compressed file of a few kB can exceed any memory."""
    if size >= _MAX_BYTES:
        raise ConfigError(
            field,
            file.name,
            f"unpacks to more than {_MAX_BYTES} bytes, and rows are held in memory; give a file "
            "with fewer rows, or use fewer of them",
        )


_MAX_BYTES = 2**32
_MIN_ROW_BYTES = 64
"""Size that a row counts for, however small it is."""
_ROWS_AT_ONCE, _BATCH_BYTES = 64, 2**30
_OTHER_FILE = "give JSON lines in a .jsonl or .jsonl.gz file, or a .parquet file"


def pairs(records: Iterable[Record], origin: str) -> Iterator[Example]:
    """Reads records with `prompt`, `chosen` and optionally `rejected`.

    `id` and `wins` (`Example.wins`, a list of two numbers) are kept if given.

    An answer may be a text or a list of chat messages whose last one is the answer.
    """
    for number, record in enumerate(records):
        rejected = record.get("rejected")
        yield Example(
            id=str(record.get("id", row_name(number))),
            prompt=_text(record, "prompt", origin, number),
            chosen=answer(_text(record, "chosen", origin, number)),
            rejected=None
            if rejected is None
            else answer(_text(record, "rejected", origin, number)),
            wins=_wins(record, _place(record, origin, str(number))),
        )


def transcripts(records: Iterable[Record], origin: str) -> Iterator[Example | None]:
    """Reads raw HH records: two transcripts that differ in the assistant's last turn.

    The prompt ends with the last `\\n\\nAssistant:`. Yields None for a record whose transcripts
    differ before it: its two answers have no prompt in common.
    """
    for number, record in enumerate(records):
        sides = []
        for column in ("chosen", "rejected"):
            text = _text(record, column, origin, number)
            head, turn, tail = text.rpartition(ASSISTANT)
            if not turn:
                raise ConfigError(
                    f"{origin} row {number}, {column}",
                    text[:80],
                    f"a transcript needs a turn {ASSISTANT!r}; for rows with a prompt column set "
                    "data.format: pairs",
                )
            sides.append((head + turn, answer(tail)))
        (prompt, chosen), (other_prompt, rejected) = sides
        yield (
            Example(id=row_name(number), prompt=prompt, chosen=chosen, rejected=rejected)
            if prompt == other_prompt
            else None
        )


def conversations(records: Iterable[Record], origin: str, write: Write) -> Iterator[Example | None]:
    """Reads chat records: `chosen` and `rejected` messages, or `messages`; the last is the answer.

    `prompt` may hold the messages before them (TRL's form); if it is a text, it only repeats them
    (UltraFeedback's form) and is not read. Yields None for a record whose two sides differ before
    their answers.
    """
    for number, record in enumerate(records):
        where = f"{origin} row {number}"
        columns = ["chosen", "rejected"] if "chosen" in record else ["messages"]
        if record.get("rejected") is None:
            columns = columns[:1]
        before = record.get("prompt")
        head = messages_of(before, f"{where}, column prompt") if isinstance(before, list) else []
        sides = [_turns(record, column, head, where) for column in columns]
        prompts = [prompt for prompt, _ in sides]
        if prompts[0] != prompts[-1]:
            yield None
            continue
        yield Example(
            id=str(record.get("id", row_name(number))),
            prompt=write(prompts[0], where),
            chosen=answer(sides[0][1]),
            rejected=answer(sides[1][1]) if len(sides) == 2 else None,
            wins=_wins(record, where),
        )


def _turns(
    record: Record, column: str, head: list[Message], where: str
) -> tuple[list[Message], str]:
    """The messages before an answer, and the answer."""
    if column not in record:
        raise ConfigError(
            where,
            sorted(record),
            "needs messages in columns chosen (and rejected) or messages; set data.format to the "
            "format of the data",
        )
    turns = [*head, *messages_of(record[column], f"{where}, column {column}")]
    roles = [turn["role"] for turn in turns]
    if len(turns) < 2 or roles[-1] != "assistant":
        raise ConfigError(
            f"{where}, column {column}",
            roles,
            "a question must come first and an answer of the assistant last",
        )
    return turns[:-1], str(turns[-1]["content"])


def prompts(records: Iterable[Record], origin: str, write: Write) -> Iterator[PromptRow]:
    """Reads records with a `prompt`, a text or messages, and optionally its `answer`."""
    for number, record in enumerate(records):
        where = f"{origin} row {number}"
        prompt, expected = record.get("prompt"), record.get("answer")
        if isinstance(prompt, list):
            text = write(messages_of(prompt, f"{where}, column prompt"), where)
        else:
            text = _text(record, "prompt", origin, number)
        if isinstance(expected, bool) or not isinstance(expected, str | int | float | None):
            raise ConfigError(f"{where}, column answer", expected, "must be a text or a number")
        yield PromptRow(
            id=str(record.get("id", row_name(number))),
            prompt=text,
            answer=None if expected is None else str(expected),
        )


def word_problems(
    records: Iterable[Record], origin: str, write: Write | None
) -> Iterator[PromptRow]:
    """Reads GSM8K: a `question`, and as `answer` a solution that ends in `#### ` and a number.

    Without a writer of messages the prompt is `Question: …\nAnswer:`, as in evaluations.
    """
    for number, record in enumerate(records):
        question = _text(record, "question", origin, number)
        turn = {"role": "user", "content": question}
        yield PromptRow(
            id=row_name(number),
            prompt=write([turn], f"{origin} row {number}")
            if write
            else f"Question: {question}\nAnswer:",
            answer=_text(record, "answer", origin, number),
        )


def stored_kinds(records: Iterable[Record]) -> tuple[str, ...]:
    """The kinds that a probe file stores: those that any of its records has."""
    fields = {field for record in records for field in record}
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
        field = f"{_place(record, origin, watched.example.id)}, field {kind}"
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
        rows.append(watched.row(kind, response, STORED_KINDS[kind]))
    return rows


def _place(record: Record, origin: str, name: str) -> str:
    line = f" (line {record.number})" if isinstance(record, Line) else ""
    return f"{origin} row {name}{line}"


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


def row_name(number: int) -> str:
    """Id of a row that has none."""
    return f"row-{number:06d}"


def _text(record: Record, column: str, origin: str, number: int) -> str:
    place = _place(record, origin, str(number))
    if column not in record:
        looks = format_of(record) if column == "prompt" else "pairs"
        remedy = (
            f"rename the column that holds it, or set data.format, which is {' or '.join(_FORMATS)}"
            if looks == "pairs"
            else f"the row looks like {_FORMATS[looks]}: set data.format to {looks}"
        )
        raise ConfigError(place, sorted(record), f"column {column!r} is missing; {remedy}")
    value = record[column]
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1].get("content")
    if not isinstance(value, str):
        raise ConfigError(
            f"{place}, column {column}",
            value,
            "must be a text or a list of messages with content",
        )
    return value
