"""Whatever stands in a file of rows: it is read, or refused with one typed error."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from datasets import Dataset
from hypothesis import HealthCheck, given, settings, strategies as st
from pyarrow import parquet

from dynolab.data.chat import template_digest
from dynolab.data.rows import Example, ProbeRow, read_rows, read_value
from dynolab.data.sources.config import DataConfig, resolve_data
from dynolab.data.sources.files import hub_records, read_records
from dynolab.data.sources.load import load_data
from dynolab.errors import ConfigError

PROBE = {
    "pair_id": "a",
    "split": "train",
    "kind": "chosen",
    "prompt": "p",
    "response": "r",
    "made_by": "m",
}


def table_bytes(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


TABLE = table_bytes([{"prompt": f"p {n}", "chosen": "c", "wins": [0.5, 0.25]} for n in range(50)])
LINES = b"".join(json.dumps(PROBE | {"pair_id": str(n)}).encode() + b"\n" for n in range(5))
READERS: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "rows.jsonl": (lambda file: list(read_records(file)), LINES),
    "rows.jsonl.gz": (lambda file: list(read_records(file)), gzip.compress(LINES)),
    "rows.parquet": (lambda file: list(read_records(file)), TABLE),
    "probes.jsonl": (lambda file: list(read_rows(file, ProbeRow)), LINES),
    "value.json": (lambda file: read_value(file, tuple[ProbeRow, ...]), b"[" + LINES[:99] + b"]"),
}


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file with some of its bytes changed, cut short, or replaced altogether."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=200) | st.sampled_from([b"[" * 99_999, b'{"a":' * 99_999]))
    content = bytearray(whole[: draw(st.integers(0, len(whole)) | st.just(len(whole)))])
    for _ in range(draw(st.integers(0, 6)) if content else 0):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    return bytes(content)


@pytest.mark.parametrize("name", READERS)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
@pytest.mark.filterwarnings("ignore")
def test_any_bytes_are_a_value_or_a_typed_error(
    name: str, tmp_path: Path, data: st.DataObject
) -> None:
    read, whole = READERS[name]
    (tmp_path / name).write_bytes(data.draw(damaged(whole)))
    try:
        read(tmp_path / name)
    except ConfigError as error:
        assert name in str(error)


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_a_typed_error(name: str, tmp_path: Path) -> None:
    read, _ = READERS[name]
    for path in (tmp_path, tmp_path / "none" / name):
        with pytest.raises(ConfigError, match="cannot be read"):
            read(path.with_suffix(Path(name).suffix))


def test_undecodable_bytes_of_a_probe_set_are_named_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "probes.jsonl"
    for line in (b'{"pair_id": "\xff"}', b'{"pair_id": "\\ud800"}', b"[" * 99_999, b'{"wins": 1}'):
        file.write_bytes(LINES + line)
        with pytest.raises(ConfigError, match=r"probes\.jsonl line 6"):
            list(read_rows(file, ProbeRow))
    (tmp_path / "value.json").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"value\.json"):
        read_value(tmp_path / "value.json", tuple[ProbeRow, ...])
    file.write_bytes(b'{"id": "a", "prompt": "p", "chosen": "c", "wins": [NaN, 0.5]}')
    with pytest.raises(ConfigError, match=r"probes\.jsonl line 1.*wins"):
        list(read_rows(file, Example))


def test_half_characters_end_at_their_line_and_not_in_a_tokenizer(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"prompt": "p", "chosen": "c"}\n{"prompt": "\\ud800", "chosen": "c"}\n')
    with pytest.raises(ConfigError, match=r"rows\.jsonl line 2.*hex escape"):
        load_data(DataConfig(source="file", path=str(file), heldout_rows=0, probe_pairs=0))


@pytest.mark.parametrize(
    "column", [[b"\xff\xfe"], [{"a": [1]}], [10**30], [None]], ids=["bytes", "object", "int", "no"]
)
def test_parquet_columns_of_other_types_are_named(tmp_path: Path, column: list[Any]) -> None:
    kind = pyarrow.decimal128(38) if column == [10**30] else None
    values = pyarrow.array(column, type=kind)
    file = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"prompt": values, "chosen": ["c"]}), file)
    with pytest.raises(ConfigError, match="column prompt"):
        load_data(DataConfig(source="file", path=str(file), heldout_rows=0, probe_pairs=0))


def test_parquet_texts_that_are_no_text_are_refused(tmp_path: Path) -> None:
    binary = pyarrow.array([b"\xff\xfe"], pyarrow.binary())
    text = pyarrow.Array.from_buffers(pyarrow.string(), 1, binary.buffers())  # is not looked at
    file = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"prompt": text}), file)
    with pytest.raises(ConfigError, match=r"rows\.parquet.*UnicodeDecodeError"):
        list(read_records(file))


class Broken(Exception):
    """What a library raises, of no kind that is known here."""


@pytest.mark.parametrize("error", [Broken("damaged"), KeyError("x"), RecursionError()])
def test_whatever_reading_the_hub_raises_names_the_data_set(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> Dataset:
        raise error

    monkeypatch.setattr("datasets.load_dataset", load)
    with pytest.raises(ConfigError, match=r"data\.hub_name = 'a/b': cannot be read"):
        list(hub_records("data.hub_name", "a/b", "train", "0" * 40))


def test_files_that_cannot_be_hashed_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rows.jsonl", "tokenizer_config.json"):
        (tmp_path / name).touch()

    def refuse(*_: object) -> None:
        raise PermissionError("not yours")

    rows = tmp_path / "rows.jsonl"
    chat = DataConfig(source="file", path=str(rows), chat_model=str(tmp_path))
    ways: list[Callable[[], object]] = [
        lambda: resolve_data(DataConfig(source="file", path=str(rows))),
        lambda: resolve_data(DataConfig(probes=str(rows))),
        lambda: resolve_data(chat),
    ]
    assert template_digest(tmp_path)
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    for way in ways:
        with pytest.raises(ConfigError, match=r"cannot be read .PermissionError: not yours"):
            way()


def test_a_user_whom_nobody_knows_is_a_typed_error() -> None:
    with pytest.raises(ConfigError, match=r"data\.path = '~nobody-of-that-name/rows\.jsonl'"):
        resolve_data(DataConfig(source="file", path="~nobody-of-that-name/rows.jsonl"))
