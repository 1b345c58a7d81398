"""The rows that training and probing read: one JSON object per line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dynolab.errors import ConfigError, reading

Split = Literal["train", "heldout"]
Probability = Annotated[float, Field(ge=0, le=1)]


class Row(BaseModel):
    """Base of all rows: immutable, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Example(Row):
    """A prompt with its preferred answer and, for preference training, a rejected one.

    `wins` holds, for the chosen and the rejected answer, the probability P(y ≻ π | x) that a judge
    or a reward model prefers it to an answer of the policy that training starts from.
    """

    id: str
    prompt: str
    chosen: str
    rejected: str | None = None
    # Excluded if None, so that rows without it keep their bytes.
    wins: tuple[Probability, Probability] | None = Field(
        default=None, exclude_if=lambda wins: wins is None
    )


class PromptRow(Row):
    """A prompt to sample responses to, with the answer to check them against, if there is one."""

    id: str
    prompt: str
    answer: str | None = None


class ProbeRow(Row):
    """One answer of a given kind whose likelihood is watched during training."""

    pair_id: str
    split: Split
    kind: str
    prompt: str
    response: str
    made_by: str
    flags: tuple[str, ...] = ()


def first_pairs(rows: Sequence[ProbeRow], pairs: int) -> list[ProbeRow]:
    """Every row of the first pairs of each split."""
    seen: dict[str, dict[str, None]] = {}
    for row in rows:
        known = seen.setdefault(row.split, {})
        if len(known) < pairs:
            known[row.pair_id] = None
    return [row for row in rows if row.pair_id in seen[row.split]]


AnyRow = TypeVar("AnyRow", bound=Row)
Parsed = TypeVar("Parsed")


def spaced(response: str) -> str:
    """The response with exactly one leading space, so that all kinds are comparable.

    A kind that kept its original leading space would differ in its first token from one without,
    whatever training did.
    """
    return " " + response.strip()


def answer(text: str) -> str:
    """Like `spaced`, but an empty response stays empty: it is end-of-sequence alone."""
    return spaced(text) if text.strip() else ""


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Writes rows as JSON lines; returns how many."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(row.model_dump_json() + "\n")
            count += 1
    return count


def read_rows(path: Path, row_type: type[AnyRow]) -> Iterator[AnyRow]:
    """Reads JSON lines; raises `ConfigError` with the number and the fault of a bad line."""
    with reading(path.name, str(path), _REMEDY), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield row_type.model_validate_json(line)
            except ValidationError as error:
                raise _invalid_row(f"{path.name} line {number}", error) from error


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
