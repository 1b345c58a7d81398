"""Files as people have them, and the rows that each format makes of their records."""

from __future__ import annotations

import bz2
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from datasets import Dataset, DatasetDict, load_dataset

from dynolab.data.chat import plain_writer
from dynolab.data.probes.build import Watched
from dynolab.data.rows import Example
from dynolab.data.sources import readers
from dynolab.data.sources.files import read_records
from dynolab.data.sources.load import load_data
from dynolab.errors import ConfigError
from tests.data.rows_files import file_config, turn, write

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


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_calls_of_tools_have_the_types_that_datasets_gives_them(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def row(number: int, **arguments: Any) -> dict[str, Any]:
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        said = turn("assistant", "") | {"tool_calls": [call] if arguments else None}
        return {"id": f"2024-05-0{number}", "chosen": [turn("user", "q"), said]}

    rows = [row(1), row(2, on="2024-05-01", size=1), row(3, on="2024-05-02", size=1.5)]
    lines = "\n\n".join(map(json.dumps, rows))
    (tmp_path / name).write_text(json.dumps(rows) if name == "rows.json" else lines)
    loaded = load_dataset(
        "json", data_files=str(tmp_path / name), split="train", cache_dir=str(tmp_path)
    )
    read = list(read_records(tmp_path / name))
    assert [row["chosen"] for row in read[1:]] == [row["chosen"] for row in loaded][1:]
    assert [row["id"] for row in read] == [row["id"] for row in rows]
    warnings = sum("dates in calls of tools" in line.message for line in caplog.records)
    assert warnings == (name == "rows.jsonl")  # of an array it keeps texts


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


@pytest.mark.parametrize("line", ["{broken", "[1, 2]", '"text"'])
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, line: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 1}\n' + line + "\n")
    with pytest.raises(ConfigError, match=r"rows\.jsonl line 2"):
        list(read_records(file))


def read(*records: dict[str, Any]) -> list[Example | None]:
    return list(readers.pairs(records, "x", plain_writer))


def test_texts_are_read_as_they_are_written() -> None:
    assert read({"prompt": "p", "chosen": "\tyes \n", "rejected": "  no"}) == [
        Example(id="row-000000", prompt="p", chosen="\tyes \n", rejected="  no")
    ]
    assert read(
        {"id": "mine", "prompt": "q", "chosen": "only"}, {"id": None, "prompt": "q", "chosen": ""}
    ) == [
        Example(id="mine", prompt="q", chosen="only"),
        Example(id="row-000001", prompt="q", chosen=""),
    ]


def test_pairs_keep_what_their_answers_win() -> None:
    record = {"prompt": "p", "chosen": "yes", "rejected": "no"}
    rows = read(record | {"wins": [0.8, 0.25]}, record)
    assert [row.wins for row in rows if row] == [(0.8, 0.25), None]
    for wins in (0.8, [0.8], [0.8, 1.2], [True, 0.1], ["0.8", 0.2], [float("nan"), 0.5]):
        with pytest.raises(ConfigError, match=r"row 0, column wins.*two probabilities"):
            read(record | {"wins": wins})


def test_what_two_conversations_begin_with_is_their_prompt() -> None:
    asked, more = turn("user", "p"), turn("user", "and?")
    chosen = [asked, turn("assistant", "yes"), more, turn("assistant", "good")]
    rejected = [asked, turn("assistant", "no"), more, turn("assistant", "bad")]
    for prompt in ({}, {"prompt": "p"}):
        (row,) = read({**prompt, "chosen": chosen, "rejected": rejected})
        assert row is not None and row.prompt == "\n\nHuman: p\n\nAssistant:"
        assert row.chosen == " yes\n\nHuman: and?\n\nAssistant: good"


def test_a_conversation_with_text_answers_is_one_of_messages() -> None:
    prompt = [turn("system", "s"), turn("user", "p")]
    (row,) = read({"prompt": prompt, "chosen": "yes", "rejected": "no"})
    assert row is not None and row.prompt == "\n\nSystem: s\n\nHuman: p\n\nAssistant:"
    assert (row.chosen, row.rejected) == (" yes", " no")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "p"}, "needs columns prompt and chosen"),
        ({"chosen": "a"}, "column prompt"),
        ({"prompt": "p", "chosen": 3}, "column chosen = 3"),
        ({"prompt": "p", "chosen": []}, r"column chosen = \[\]"),
        ({"prompt": None, "chosen": "a"}, "column prompt = None"),
    ],
)
def test_missing_and_odd_columns_are_named(record: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(record)


def test_rows_that_cannot_be_read_are_counted_and_the_first_is_named() -> None:
    good = {"prompt": "p", "chosen": "a", "rejected": "b"}
    with pytest.raises(ConfigError, match=r"x row 1, column rejected = None.* 2 .*among 4"):
        read(good, good | {"rejected": None}, good, good | {"rejected": None})


def test_transcripts_split_at_the_last_assistant_turn() -> None:
    """Answers that part earlier have no common prompt."""
    head = "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:"
    assert read(
        {"chosen": f"{head} good", "rejected": f"{head} bad"},
        {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: c\n\nAssistant: b"},
    ) == [Example(id="row-000000", prompt=head, chosen=" good", rejected=" bad"), None]


def test_what_two_texts_begin_with_is_their_prompt() -> None:
    (row,) = read({"chosen": "the cat runs", "rejected": "the cat sits"})
    assert row == Example(id="row-000000", prompt="the cat", chosen=" runs", rejected=" sits")


WATCHED = Watched(Example(id="a", prompt="p", chosen=" yes", rejected=""), "train")


def test_stored_probes_are_written_as_the_chosen_answer_and_null_is_none() -> None:
    record = {"chosen": " yes", "rejected": "", "irr_hum": None, "note": 3}
    kinds = readers.stored_kinds([record, {"irr_test": "x"}])
    assert kinds == ("chosen", "rejected", "irr_test", "irr_hum")
    rows = readers.stored_probes(record | {"irr_test": "  known"}, WATCHED, kinds, "x")
    assert {row.kind: row.response for row in rows} == {
        "chosen": " yes",
        "rejected": "",
        "irr_test": " known",
    }


def test_a_field_that_one_line_of_a_probe_file_lacks_is_named_with_its_line(
    tmp_path: Path,
) -> None:
    file = tmp_path / "probes.jsonl"
    whole = {"prompt": "p", "chosen": "c", "irr_hum": "h"}
    lacking = {"prompt": "p", "chosen": "c"}
    file.write_text(json.dumps(whole) + "\n\n" + json.dumps(lacking) + "\n")
    records = list(read_records(file))
    kinds = readers.stored_kinds(records)
    assert len(readers.stored_probes(records[0], WATCHED, kinds, file.name)) == 2
    with pytest.raises(ConfigError, match=r"probes\.jsonl row a \(line 3\), field irr_hum"):
        readers.stored_probes(records[1], WATCHED, kinds, file.name)
    with pytest.raises(ConfigError, match=r"field irr_hum = \['h'\]: must be a text"):
        readers.stored_probes(lacking | {"irr_hum": ["h"]}, WATCHED, kinds, file.name)
