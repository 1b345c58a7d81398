"""Files as people have them, columns under other names, and prompts with several pairs."""

from __future__ import annotations

import bz2
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from datasets import Dataset, DatasetDict

from dynolab.data.sources.files import read_records
from dynolab.data.sources.load import load_data
from dynolab.errors import ConfigError
from tests.data.rows_files import file_config, write

ROWS = [{"prompt": f"q {n}", "chosen": f" a\n{n}", "rejected": " é"} for n in range(4)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl", BYTE_ORDER_MARK + LINES),
        ("rows.json", json.dumps(ROWS, indent=1).encode()),
        ("rows.json", LINES),
        ("rows.jsonl.zst", zstandard.compress(LINES)),
        ("rows.json.bz2", bz2.compress(LINES)),
    ],
)
def test_json_is_read_however_it_is_written(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert list(read_records(tmp_path / name)) == ROWS


def test_tables_and_saved_data_sets_are_read(tmp_path: Path) -> None:
    data = Dataset.from_list(ROWS)
    data.to_csv(tmp_path / "rows.csv")
    data.to_csv(tmp_path / "rows.tsv", sep="\t")
    data.to_parquet(tmp_path / "rows.parquet")
    data.save_to_disk(tmp_path / "saved")
    DatasetDict({"test": data.take(1), "train": data}).save_to_disk(tmp_path / "splits")
    arrow = next((tmp_path / "saved").glob("*.arrow"))
    names = ("rows.csv", "rows.tsv", "rows.parquet", "saved", "splits")
    for path in (arrow, *(tmp_path / name for name in names)):
        assert list(read_records(path)) == ROWS, path
    assert len(load_data(file_config(str(tmp_path / "saved"))).pairs) == 4


def test_an_array_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text("[1, 2]")
    with pytest.raises(ConfigError, match=r"rows\.json line 1"):
        list(read_records(tmp_path / "rows.json"))


def test_columns_of_other_names_are_named(tmp_path: Path) -> None:
    rows = [{"q": f"q {n}", "best": " a", "worst": " b", "score": n} for n in range(4)]
    columns = {"prompt": "q", "chosen": "best", "rejected": "worst"}
    data = load_data(file_config(write(tmp_path, rows), columns=columns))
    assert [row.prompt for row in data.pairs] == ["q 0", "q 1", "q 2", "q 3"]
    assert "score" in data.read.split("ignored: ")[1]
    with pytest.raises(ConfigError, match=r"data\.columns = \['better'\]"):
        load_data(file_config(write(tmp_path, rows), columns=columns | {"chosen": "better"}))


def pair(prompt: int, number: int) -> dict[str, Any]:
    return {"prompt": f"q {prompt}", "chosen": f" a {prompt}", "rejected": f" b {number}"}


def test_pairs_of_a_prompt_are_held_out_together(tmp_path: Path) -> None:
    rows = [pair(prompt, 4 * prompt + n) for prompt in range(24) for n in range(4)]
    data = load_data(file_config(write(tmp_path, rows), heldout_rows=None, probe_pairs=5))
    assert len(data.pairs) + len(data.heldout) == len(rows) and len(data.heldout) >= 9
    assert not {row.prompt for row in data.pairs} & {row.prompt for row in data.heldout}
    assert {row.kind for row in data.probes} >= {"chosen", "rejected", "irr_test"}


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_small_files_are_read(count: int, tmp_path: Path) -> None:
    rows = [pair(n, n) for n in range(count)]
    data = load_data(file_config(write(tmp_path, rows), heldout_rows=None, probe_pairs=100))
    assert (len(data.pairs), len(data.heldout)) == ((count, 0) if count < 4 else (count - 2, 2))
    assert "irr_train" in {row.kind for row in data.probes}


def test_odd_rows_are_counted(tmp_path: Path) -> None:
    rows = [
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        {"prompt": "r", "chosen": " same", "rejected": " same"},
        {"prompt": "s", "chosen": " ", "rejected": " b"},
    ]
    counts = load_data(file_config(write(tmp_path, rows))).counts
    odd = ("duplicate_pairs", "answers_without_blank", "equal_answers", "empty_answers")
    assert [counts[f"data/{name}"] for name in odd] == [1, 2, 1, 1]
