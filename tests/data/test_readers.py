"""Records of files, and the rows that each format makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dynolab.data.chat import plain_writer
from dynolab.data.probes.build import Watched
from dynolab.data.rows import Example
from dynolab.data.sources import readers
from dynolab.data.sources.files import read_records
from dynolab.errors import ConfigError


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


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


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
    """Those that part earlier have no common prompt."""
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


def test_a_missing_prompt_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "probes.jsonl"
    file.write_text('\n{"chosen": "c"}\n')
    with pytest.raises(ConfigError, match=r"x row 0 \(line 2\).*column prompt"):
        read(*read_records(file))
