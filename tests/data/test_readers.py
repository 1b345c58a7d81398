"""Records of files, and the rows that each format makes of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from dynolab.data.probes.build import Watched
from dynolab.data.rows import Example
from dynolab.data.sources import readers
from dynolab.errors import ConfigError


def test_records_of_plain_and_gzipped_files(tmp_path: Path) -> None:
    lines = '{"a": 1}\n\n{"a": 2}\n'
    (tmp_path / "rows.jsonl").write_text(lines)
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as file:
        file.write(lines)
    for name in ("rows.jsonl", "rows.jsonl.gz"):
        assert list(readers.read_records(tmp_path / name)) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("line", ["{broken", "[1, 2]", '"text"'])
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, line: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 1}\n' + line + "\n")
    with pytest.raises(ConfigError, match=r"rows\.jsonl line 2"):
        list(readers.read_records(file))


def test_pairs_get_ids_and_one_leading_space() -> None:
    records = [
        {"prompt": "p", "chosen": "yes ", "rejected": "  no"},
        {"id": "mine", "prompt": "q", "chosen": "only"},
    ]
    assert list(readers.pairs(records, "x")) == [
        Example(id="row-000000", prompt="p", chosen=" yes", rejected=" no"),
        Example(id="mine", prompt="q", chosen=" only", rejected=None),
    ]


def test_pairs_keep_what_their_answers_win() -> None:
    record = {"prompt": "p", "chosen": "yes", "rejected": "no"}
    turns = [{"role": "user", "content": "p"}, {"role": "assistant", "content": "yes"}]
    chat = {"chosen": turns, "rejected": turns, "wins": [1, 0]}
    given = [
        readers.pairs([record | {"wins": [0.8, 0.25]}], "x"),
        readers.pairs([record], "x"),
        readers.conversations([chat], "x", lambda *_: "p"),
    ]
    assert [row.wins for rows in given for row in rows if row] == [(0.8, 0.25), None, (1.0, 0.0)]
    for wins in (0.8, [0.8], [0.8, 1.2], [True, 0.1], ["0.8", 0.2], [float("nan"), 0.5]):
        with pytest.raises(ConfigError, match=r"row 0, column wins.*two probabilities"):
            list(readers.pairs([record | {"wins": wins}], "x"))


def test_chat_messages_give_their_last_content() -> None:
    chosen = [{"role": "user", "content": "p"}, {"role": "assistant", "content": "yes"}]
    (pair,) = readers.pairs([{"prompt": "p", "chosen": chosen}], "x")
    assert pair.chosen == " yes"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"prompt": "p", "answer": "a"}, "column 'chosen' is missing"),
        ({"chosen": "a"}, "column 'prompt' is missing"),
        ({"prompt": "p", "chosen": 3}, "column chosen = 3"),
        ({"prompt": "p", "chosen": []}, r"column chosen = \[\]"),
        ({"prompt": None, "chosen": "a"}, "column prompt = None"),
    ],
)
def test_missing_and_odd_columns_are_named(record: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(readers.pairs([record], "x"))


def test_transcripts_split_at_the_last_assistant_turn() -> None:
    """Those that part earlier have no common prompt."""
    head = "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:"
    records = [
        {"chosen": f"{head} good", "rejected": f"{head} bad"},
        {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: c\n\nAssistant: b"},
    ]
    assert list(readers.transcripts(records, "x")) == [
        Example(id="row-000000", prompt=head, chosen=" good", rejected=" bad"),
        None,
    ]


def test_a_transcript_without_an_assistant_is_refused() -> None:
    with pytest.raises(ConfigError, match="format: pairs"):
        list(readers.transcripts([{"chosen": "hello", "rejected": "hello"}], "x"))


WATCHED = Watched(Example(id="a", prompt="p", chosen=" yes", rejected=""), "train")


def test_stored_probes_are_kept_with_one_leading_space_and_null_is_none() -> None:
    record = {"chosen": "yes ", "rejected": " ", "irr_hum": None, "note": 3}
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
    records = list(readers.read_records(file))
    kinds = readers.stored_kinds(records)
    assert len(readers.stored_probes(records[0], WATCHED, kinds, file.name)) == 2
    with pytest.raises(ConfigError, match=r"probes\.jsonl row a \(line 3\), field irr_hum"):
        readers.stored_probes(records[1], WATCHED, kinds, file.name)
    with pytest.raises(ConfigError, match=r"field irr_hum = \['h'\]: must be a text"):
        readers.stored_probes(lacking | {"irr_hum": ["h"]}, WATCHED, kinds, file.name)


def test_a_missing_prompt_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "probes.jsonl"
    file.write_text('\n{"chosen": "c"}\n')
    with pytest.raises(ConfigError, match=r"x row 0 \(line 2\) = .*'prompt' is missing"):
        list(readers.pairs(readers.read_records(file), "x"))
