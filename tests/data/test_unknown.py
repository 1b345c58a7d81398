"""Unknown tokens are counted, and tokenizers that read otherwise are named."""

from __future__ import annotations

import logging
import shlex
from collections import Counter
from pathlib import Path

import pytest
import yaml
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dynolab.data.encode import Encoder
from dynolab.data.rows import Example
from dynolab.data.sources.config import rows_line
from dynolab.data.sources.load import load_data
from dynolab.data.unknown import (
    UnknownTokens,
    about_loaders,
    end_tokens,
    read_otherwise,
    unknown_tokens,
)
from dynolab.integrations.callback import ProbeCallback
from tests.data.rows_files import file_config, write
from tests.integrations.test_callback import dpo, probes

WORDS = ("<unk>", "</s>", "a", "b", "c", "A")


def tokenizer(*, lowers: bool = False) -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    if lowers:
        words.normalizer = normalizers.Lowercase()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", eos_token="</s>", pad_token="</s>"
    )


def test_unknown_tokens_of_answers_are_counted() -> None:
    encoder = Encoder(tokenizer(), 32, "error")
    encoder.examples(
        [
            Example(id="1", prompt="a é", chosen=" b é é", rejected=" c"),
            Example(id="2", prompt="a", chosen=" b c", rejected=" A é"),
        ]
    )
    metrics = encoder.counts.as_metrics()
    assert UnknownTokens.of_metrics(metrics) == UnknownTokens(3, 8, 2, 4, Counter({"é": 3}))
    message = str(UnknownTokens.of_metrics(metrics))
    assert message.startswith(
        "3 of 8 tokens (37.5%) in 2 of 4 answers are unknown to the tokenizer"
    )
    named = unknown_tokens(tokenizer(), ["é a", "b"])
    assert named == UnknownTokens(1, 3, 1, 2, Counter({"é": 1}))
    assert "They are “é” 1×: replace them" in str(named)


def test_typographic_characters_have_an_option_that_replaces_them(tmp_path: Path) -> None:
    unknown = unknown_tokens(tokenizer(), ["a ’ b", "“ a ”", "é"])
    assert unknown.replacements == {"’": "'", "“": '"', "”": '"'}
    _program, option, setting = shlex.split(f"dynolab {unknown.option}")
    assert option == "--set"
    texts = yaml.safe_load(setting.removeprefix("data.replace="))
    assert texts == unknown.replacements
    row = {"id": "row’s", "prompt": "it’s", "chosen": "“b” – c", "rejected": "c"}
    rows = [row, row | {"id": "2"}]
    data = load_data(file_config(write(tmp_path, rows), replace=texts, heldout_rows=0))
    assert data.pairs[0].prompt == "it's" and data.pairs[0].chosen.strip() == '"b" – c'
    assert data.pairs[0].id == "row’s"  # what other files name it by


def test_messages_are_replaced_too_and_once(tmp_path: Path) -> None:
    """What a replacement writes is not replaced again; the longer of two texts counts."""
    said = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "a"}]
    rows = [{"chosen": said, "rejected": [said[0], said[1] | {"content": "b"}]}] * 2
    config = file_config(write(tmp_path, rows), format="chat", chat="plain", heldout_rows=0)
    pair = load_data(config.model_copy(update={"replace": {"a": "b", "b": "a", "ab": "c"}})).pairs[
        0
    ]
    assert (pair.prompt.split("\n\n")[1], pair.chosen.strip(), pair.rejected) == (
        "Human: c",
        "b",
        " a",
    )


def test_known_tokens_leave_no_count() -> None:
    encoder = Encoder(tokenizer(), 32, "error")
    encoder.examples([Example(id="1", prompt="é", chosen="b", rejected="c")])
    assert not any("unknown" in name for name in encoder.counts.as_metrics())
    assert UnknownTokens.of_metrics({}).tokens == 0


def test_a_tokenizer_is_compared_with_its_file(tmp_path: Path) -> None:
    tokenizer().save_pretrained(tmp_path)
    texts = ["a b", "A b", "é"]
    assert read_otherwise(tokenizer(), tmp_path, texts) == []
    assert read_otherwise(tokenizer(lowers=True), tmp_path, texts) == ["A b"]
    assert read_otherwise(tokenizer(), tmp_path / "nowhere", texts) == []


def test_a_loader_that_cuts_the_end_of_answers_is_named_with_its_remedy(tmp_path: Path) -> None:
    pieces = Tokenizer(models.BPE({"<end>": 0, "▁": 1, "a": 2, "<": 3, ">": 4}, []))
    pieces.normalizer = normalizers.Prepend("▁")
    pieces.add_special_tokens([AddedToken("<end>", normalized=True)])
    made = PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="<end>")
    made.save_pretrained(tmp_path)
    note = about_loaders(str(tmp_path))
    tokens = end_tokens(made)
    assert tokens > 1 and f"the end of an answer is {tokens} tokens" in note
    made.add_tokens([AddedToken("<end>", special=True, normalized=False)], special_tokens=True)
    assert end_tokens(made) == 1
    made.save_pretrained(tmp_path)
    assert about_loaders(str(tmp_path)) == ""


def test_the_callback_warns_of_both(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = dpo(tmp_path)
    rows = [row.model_copy(update={"response": row.response + " é"}) for row in probes()]
    trainer.processing_class.save_pretrained(tmp_path / "tokenizer")  # type: ignore[union-attr]
    trainer.processing_class.name_or_path = str(tmp_path / "tokenizer")  # type: ignore[union-attr]
    file = tmp_path / "tokenizer" / "tokenizer.json"
    other = Tokenizer.from_file(str(file))
    other.normalizer = normalizers.Replace("é", "")
    other.save(str(file))
    trainer.add_callback(ProbeCallback(trainer, rows, every=10))
    with caplog.at_level(logging.WARNING, logger="dynolab"):
        trainer.train()
    records = [record for record in caplog.records if record.name.startswith("dynolab")]
    first, second = (record.getMessage() for record in records)
    assert "in 8 of 8 answers are unknown to the tokenizer" in first
    assert "splits 8 of 8 answers otherwise than its tokenizer.json" in second


@pytest.mark.parametrize(
    ("rows", "heldout"), [(200, 20), (2_000, 100), (15, 2), (6, 2), (4, 2), (3, 0), (2, 0)]
)
def test_a_tenth_of_the_rows_is_held_out_by_default(
    rows: int, heldout: int, tmp_path: Path
) -> None:
    pairs = [
        {"prompt": f"question {number}", "chosen": f"yes {number}", "rejected": f"no {number}"}
        for number in range(rows)
    ]
    data = load_data(file_config(write(tmp_path, pairs), heldout_rows=None))
    assert (len(data.pairs), len(data.heldout)) == (rows - heldout, heldout)


def test_what_became_of_the_rows_is_one_line() -> None:
    counts = {"data/train_pairs": 180.0, "data/heldout_pairs": 18.0}
    assert rows_line(counts) == "198 rows → 180 training, 18 held-out"
    counts["data/heldout_rows_in_training"] = 2.0
    assert rows_line(counts) == (
        "200 rows → 180 training, 18 held-out, 2 left out (held-out rows with a prompt or answer "
        "that training has, too)"
    )
    assert rows_line({}) == ""
