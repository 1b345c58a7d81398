"""Records of files and of the Hub's data sets."""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from dynolab.errors import ConfigError, check_installed, reading

log = logging.getLogger(__name__)

Record = Mapping[str, Any]

REMEDY = "give JSON (lines or an array), CSV, Parquet or Arrow, or a folder of `save_to_disk`"
_TABLES = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".arrow": "arrow"}
_COMPRESSED = (".gz", ".zst", ".bz2", ".xz")


class Line(dict[str, Any]):
    """A record of a JSON-lines file, with its line number."""

    __slots__ = ("number",)

    def __init__(self, record: Mapping[str, Any], number: int) -> None:
        super().__init__(record)
        self.number = number


def place(record: Record, origin: str, name: object) -> str:
    """Where a record stands, for messages."""
    line = f" (line {record.number})" if isinstance(record, Line) else ""
    return f"{origin} row {name}{line}"


def read_records(path: Path, field: str = "data.path") -> Iterator[dict[str, Any]]:
    """Reads the rows of a file, one after the other: JSON lines, a JSON array, CSV, Parquet, Arrow.

    Text may be compressed (gz, zst, bz2, xz). A folder is one of `Dataset.save_to_disk`; of several
    splits it is `train`.

    **Arguments:** `field`: the setting that names the file, for messages.

    **Raises:** `ConfigError` for a damaged file, with the line number if it has lines.
    """
    if path.is_dir():
        return _saved(path, field)
    name = path.name.removesuffix(path.suffix) if path.suffix in _COMPRESSED else path.name
    kind = _TABLES.get(Path(name).suffix)
    return _table(path, kind, field) if kind else _with_typed_calls(_json(path, field), path)


def hub_records(
    field: str, name: str, split: str, revision: str | None, folder: str | None = None
) -> Iterator[dict[str, Any]]:
    """Streams a split of a Hub data set, or of a folder in it; `ConfigError` if it is not there."""
    from datasets import load_dataset

    of_folder = f" and hub_folder = {folder!r}" if folder else ""
    with reading(field, name, f"give a data set that loads with hub_split = {split!r}{of_folder}"):
        yield from load_dataset(
            name, data_dir=folder, split=split, revision=revision, streaming=True
        )


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


def _saved(folder: Path, field: str) -> Iterator[dict[str, Any]]:
    check_installed(field, "datasets", "train")
    from datasets import DatasetDict, load_from_disk

    with reading(field, str(folder), REMEDY):
        data = load_from_disk(str(folder))
        if isinstance(data, DatasetDict):
            data = data["train" if "train" in data else next(iter(data))]
        yield from data


def _table(file: Path, kind: str, field: str) -> Iterator[dict[str, Any]]:
    check_installed(field, "datasets", "train")
    from datasets import load_dataset, logging

    logging.set_verbosity(logging.CRITICAL)  # what it logs of a damaged file is in its error
    more = {"sep": "\t"} if ".tsv" in file.suffixes else {}
    with reading(field, file.name, REMEDY):
        yield from load_dataset(kind, data_files=str(file), split="train", streaming=True, **more)


def _with_typed_calls(records: Iterator[dict[str, Any]], file: Path) -> Iterator[dict[str, Any]]:
    """Rows of which those that call tools are as `datasets` reads them, where it can."""
    typed: Iterator[dict[str, Any]] | None = None
    passed, warned = 0, False
    for number, record in enumerate(records):
        if any(map(_has_calls, record.values())):
            typed = _typed(file) if typed is None else typed
            row = next(itertools.islice(typed, number - passed, None), {})
            passed = number + 1
            nested = {name for name, value in record.items() if isinstance(value, list | dict)}
            record.update({name: row[name] for name in nested & set(row)})
            if not warned and _has_dates(record):
                warned = True
                log.warning(
                    "%s: dates in calls of tools are read as times, as trainers have `datasets` "
                    "read them, and chat templates write <datetime> for a time; to train on the "
                    "dates, write a call's arguments as one text of JSON",
                    file.name,
                )
        yield record


def _typed(file: Path) -> Iterator[dict[str, Any]]:
    """Rows as `datasets` reads them, as far as it can."""
    # Whatever its readers raise: the rows are read already.
    with contextlib.suppress(Exception), tempfile.TemporaryDirectory() as folder:
        import datasets

        shown = not datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()
        try:
            rows = datasets.load_dataset(
                "json", data_files=str(file), split="train", cache_dir=folder
            )
        finally:
            if shown:
                datasets.enable_progress_bars()
        yield from rows


def _has_dates(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_dates, value.values()))
    return any(map(_has_dates, value)) if isinstance(value, list) else isinstance(value, date)


def _has_calls(value: object) -> bool:
    """Whether a value is messages of which one calls a tool with values of its own."""
    messages = [value] if isinstance(value, dict) else value
    for message in messages if isinstance(messages, list) else ():
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function", call) if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("arguments"), dict):
                return True
    return False


def _json(file: Path, field: str) -> Iterator[dict[str, Any]]:
    """JSON lines, or an array; raises `ConfigError` with the number of a bad line."""
    from fsspec.compression import compr
    from fsspec.utils import infer_compression
    from pydantic_core import from_json

    with contextlib.ExitStack() as stack:
        with reading(field, file.name, REMEDY):
            raw = stack.enter_context(file.open("rb"))
            compression = infer_compression(file.name)
            lines = io.BufferedReader(compr[compression](raw, mode="rb")) if compression else raw
        for number in itertools.count(1):
            place = f"{file.name} line {number}"
            with reading(field, place, REMEDY):
                line = lines.readline()
                if not line:
                    return
                line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                is_array = number == 1 and line.lstrip().startswith(b"[")
                if is_array:
                    line += lines.read()
                record = from_json(line) if line.strip() else None
            if not line.strip():
                continue
            records = record if is_array else [record]
            if not isinstance(records, list) or not all(isinstance(row, dict) for row in records):
                raise ConfigError(
                    place,
                    line.decode().strip()[:80],
                    "every line, or every item of an array, must be a JSON object, one row each",
                )
            for row in records:
                yield row if is_array else Line(row, number)
