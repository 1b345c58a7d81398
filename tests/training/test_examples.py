"""A training's rows are encoded where they are drawn, and are those of encoding all of them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from transformers import PreTrainedTokenizerFast

from dynolab.data.encode import Encoder, Overlong
from dynolab.data.rows import Example, write_rows
from dynolab.data.unknown import surely_known, unknown_tokens
from dynolab.errors import ConfigError
from dynolab.objectives import DPOConfig, SFTConfig
from dynolab.training.examples import LONGEST_ROWS, Examples
from tests.data.test_encode import byte_level, sentencepiece
from tests.training.small import make_tokenizer


def with_unknown() -> PreTrainedTokenizerFast:
    """As Llama's, without bytes: it knows no more than a few letters."""
    tokenizer = sentencepiece([("a", "b")])
    tokenizer.backend_tokenizer.model.unk_token = "\n"
    tokenizer.unk_token = "\n"
    return tokenizer


def rows(count: int, letters: str, most: int = 30) -> list[Example]:
    rng = random.Random(count)

    def text() -> str:
        return "".join(rng.choices(letters, k=rng.randint(1, most)))

    return [
        Example(id=f"r{n}", prompt=text(), chosen=" " + text(), rejected=" " + text())
        for n in range(count)
    ]


@pytest.mark.parametrize("letters", ["abcd ", "abcdé ", "ab\n", "w1 "])
@pytest.mark.parametrize("overlong", get_args(Overlong))
@pytest.mark.parametrize("limit", [20, 120, 200])
@pytest.mark.parametrize("make", [byte_level, with_unknown, make_tokenizer])
def test_rows_are_those_of_encoding_all(
    make: Callable[[], PreTrainedTokenizerFast],
    limit: int,
    overlong: Overlong,
    letters: str,
    tmp_path: Path,
) -> None:
    pairs, tokenizer = rows(40, letters), make()
    write_rows(tmp_path / "train.jsonl", pairs)
    reference, encoder = (Encoder(tokenizer, limit, overlong) for _ in range(2))
    try:
        expected = reference.examples(pairs)
    except ConfigError as error:
        with pytest.raises(ConfigError, match=re.escape(str(error))):
            Examples(tmp_path / "train.jsonl", encoder, DPOConfig())
        return
    examples = Examples(tmp_path / "train.jsonl", encoder, DPOConfig())
    assert (examples[-1], examples[1:3]) == (expected[-1], expected[1:3])
    assert list(examples) == list(examples) == expected
    assert encoder.counts.as_metrics() == reference.counts.as_metrics()


@pytest.mark.parametrize("make", [byte_level, with_unknown, make_tokenizer])
def test_texts_that_are_surely_known_have_no_unknown_token(
    make: Callable[[], PreTrainedTokenizerFast],
) -> None:
    tokenizer = make()
    known = surely_known(tokenizer)
    texts = ["ab a", "a\nb", "aé", "éa", "x{", "", " "]
    assert not any(unknown_tokens(tokenizer, [text]).tokens for text in texts if known(text))
    assert known("ab a") == (make is not make_tokenizer)


def test_rows_that_are_not_drawn_are_not_encoded_but_the_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded, encode = [], Encoder.example

    def watched(encoder: Encoder, row: Example) -> object:
        encoded.append(row.id)
        return encode(encoder, row)

    monkeypatch.setattr(Encoder, "example", watched)
    pairs, file = rows(5 * LONGEST_ROWS, "abcd "), tmp_path / "train.jsonl"
    write_rows(file, pairs)
    examples = Examples(file, Encoder(byte_level(), 64, "error"), SFTConfig())
    assert len(encoded) == LONGEST_ROWS and len(examples) == len(pairs)
    assert (examples[7].id, encoded[LONGEST_ROWS:]) == ("r7", ["r7"])
    write_rows(file, [*pairs[:500], pairs[0].model_copy(update={"chosen": "a" * 64}), *pairs[500:]])
    with pytest.raises(ConfigError, match=r"row r0 exceeds the model's context of 64 tokens by \d"):
        Examples(file, Encoder(byte_level(), 64, "error"), SFTConfig())
