"""The rows that training and probing read: one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dynolab.aside import write_aside
from dynolab.errors import ConfigError, reading

Split = Literal["train", "heldout"]
Probability = Annotated[float, Field(ge=0, le=1)]


class Row(BaseModel):
    """Base of all rows: immutable, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Turn = tuple[str, str]
"""What a chat template writes before and after the text of an answer."""


class Prompted(Row):
    """Base of rows with a prompt.

    `turn` is there if a chat template wrote the row's texts: they then hold all of its special
    tokens, the answers' end included. Without it they are plain texts, to which the tokenizer's own
    special tokens are added.
    """

    # Excluded if None, so that rows without it keep their bytes.
    turn: Turn | None = Field(default=None, exclude_if=lambda turn: turn is None)

    def written(self, text: str) -> str:
        """An answer from elsewhere, such as a sampled one, as an answer of this row is written."""
        return text if self.turn is None else self.turn[0] + text.strip() + self.turn[1]

    def content(self, answer: str) -> str:
        """An answer of this row without what the chat template wrote around it."""
        if self.turn is None:
            return answer
        return answer.removeprefix(self.turn[0]).removesuffix(self.turn[1])


class Example(Prompted):
    """A prompt with its preferred answer and, for preference training, a rejected one.

    `wins` holds, for the chosen and the rejected answer, the probability P(y ≻ π | x) that a judge
    or a reward model prefers it to an answer of the policy that training starts from. `weight`
    multiplies the row's loss; default 1. `label` is there in rows of single answers: whether
    `chosen`, the only one, is a good one.
    """

    id: str
    prompt: str
    chosen: str
    rejected: str | None = None
    # Excluded if None, so that rows without it keep their bytes.
    wins: tuple[Probability, Probability] | None = Field(
        default=None, exclude_if=lambda wins: wins is None
    )
    weight: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, exclude_if=lambda weight: weight is None
    )
    label: bool | None = Field(default=None, exclude_if=lambda label: label is None)


class PromptRow(Prompted):
    """A prompt to sample responses to, with the answer to check them against, if there is one."""

    id: str
    prompt: str
    answer: str | None = None


class ProbeRow(Prompted):
    """One answer of a given kind whose likelihood is watched during training."""

    pair_id: str
    split: Split
    kind: str
    prompt: str
    response: str
    made_by: str
    flags: tuple[str, ...] = ()


BETWEEN = "/"
"""Stands between the name of a source among several and the id of its row."""


def rows_by_source(ids: Sequence[str]) -> dict[str, list[int]]:
    """Places of the ids of each source; {} unless all begin with a source's name, of several."""
    places: dict[str, list[int]] = {}
    for number, name in enumerate(ids):
        source, between, _ = name.partition(BETWEEN)
        if not between:
            return {}
        places.setdefault(source, []).append(number)
    return places if len(places) > 1 else {}


def first_pairs(rows: Sequence[ProbeRow], pairs: int) -> list[ProbeRow]:
    """Every row of the first pairs of each split."""
    seen: dict[str, dict[str, None]] = {}
    for row in rows:
        of_split = seen.setdefault(row.split, {})
        if len(of_split) < pairs:
            of_split[row.pair_id] = None
    return [row for row in rows if row.pair_id in seen[row.split]]


AnyRow = TypeVar("AnyRow", bound=Row)
Parsed = TypeVar("Parsed")


def spaced(response: str) -> str:
    """The response with exactly one leading space, as the answers of built-in worlds have."""
    return " " + response.strip()


def in_place_of(answer: str, text: str, row: Prompted) -> str:
    """A text as an answer of a row is written: with its turn, or its white space at both ends.

    Without them its first or last token would differ from the answer's, before any training.
    """
    if row.turn is not None or not answer.strip() or not text.strip():
        return row.written(text.strip())
    head, tail = answer[: -len(answer.lstrip())], answer[len(answer.rstrip()) :]
    return head + text.strip() + tail


def with_rejected(examples: Sequence[Example], responses: Sequence[str]) -> list[Example]:
    """Replaces the rejected answers of pairs, one response per example.

    With responses sampled from the policy itself, the negative gradient acts on a peak of the
    policy instead of a valley, where it would squeeze (Ren & Sutherland, arXiv 2407.10490, §3.3).
    On-policy training goes further: it samples both answers from the current policy at every step
    (`Online`). A response that equals the chosen answer is kept: its pair's two forces cancel.
    """
    return [
        example.model_copy(
            update={"rejected": in_place_of(example.chosen, response, example), "wins": None}
        )
        for example, response in zip(examples, responses, strict=True)
    ]


def common_length(ids: Sequence[object], others: Sequence[object]) -> int:
    """Number of leading items, such as tokens, that two sequences have in common."""
    pairs = enumerate(zip(ids, others, strict=False))
    return next((n for n, (first, second) in pairs if first != second), min(len(ids), len(others)))


def json_line(row: BaseModel | Mapping[str, object]) -> str:
    """A row as a line of JSON, with its end."""
    return (row.model_dump_json() if isinstance(row, BaseModel) else json.dumps(row)) + "\n"


def json_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file of JSON lines. `\\n` alone ends one.

    `str.splitlines` knows further ends, such as U+2028, which are texts' own in JSON.
    """
    with path.open("rb") as file:
        yield from file


def write_rows(path: Path, rows: Iterable[BaseModel | Mapping[str, object]]) -> int:
    """Writes rows as JSON lines; returns how many."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json_line(row))
            count += 1
    return count


def read_rows(path: Path, row_type: type[AnyRow]) -> Iterator[AnyRow]:
    """Reads JSON lines; raises `ConfigError` with the number and the fault of a bad line."""
    return (row for _, _, row in rows_with_lines(path, row_type))


def rows_with_lines(path: Path, row_type: type[AnyRow]) -> Iterator[tuple[int, bytes, AnyRow]]:
    """Reads rows as `read_rows`, each with its line's first byte in the file, and the line."""
    place = 0
    with reading(path.name, str(path), _REMEDY):
        for number, line in enumerate(json_lines(path), start=1):
            try:
                if line.strip():
                    yield place, line, row_type.model_validate_json(line)
            except ValidationError as error:
                raise _invalid_row(f"{path.name} line {number}", error) from error
            place += len(line)


def whole_rows(path: Path, row_type: type[AnyRow]) -> Iterator[AnyRow]:
    """Reads the rows that were written to their end, of a file that a kill may have cut."""
    for line in json_lines(path) if path.exists() else ():
        if line.endswith(b"\n"):
            with suppress(ValidationError):
                yield row_type.model_validate_json(line)


def replace_rows(path: Path, rows: Iterable[BaseModel | Mapping[str, object]]) -> None:
    """Writes rows in place of a file's, at once."""
    write_aside(path, lambda part: write_rows(part, rows))


def read_value(path: Path, expected: type[Parsed]) -> Parsed:
    """Reads a file of one JSON value, such as a row or a tuple of rows."""
    with reading(path.name, str(path), _REMEDY):
        content = path.read_bytes()
    try:
        return TypeAdapter(expected).validate_json(content)
    except ValidationError as error:
        raise _invalid_row(path.name, error) from error


def _invalid_row(where: str, error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"]) or "the line"
    return ConfigError(where, field, f"{first['msg']}; {_REMEDY}")


_REMEDY = "fix it, or rerun the stage that wrote it"
