"""Rows that exceed the context: refused, dropped or cut on the left, and counted."""

from __future__ import annotations

import pytest

from dynolab.data.encode import Encoder, Overlong
from dynolab.data.rows import Example
from dynolab.errors import ConfigError
from tests.training.small import make_tokenizer


def make_encoder(max_length: int, overlong: Overlong) -> Encoder:
    return Encoder(make_tokenizer(), max_length, overlong)


def test_the_oldest_tokens_of_a_long_prompt_go_first() -> None:
    encoder = make_encoder(6, "truncate_left")
    one = encoder.response("a", "w1 w2 w3 w4 w5", " w6 w7")
    assert one is not None
    ids = encoder.tokenizer.convert_tokens_to_ids
    assert list(one.ids) == [1, *ids(["w4", "w5", "w6", "w7"]), 2]  # <bos> stays
    assert one.prompt_length == 3
    assert encoder.counts.truncated == 1


def test_a_prompt_to_sample_from_leaves_room_for_its_response() -> None:
    words = "w1 w2 w3 w4"
    whole = make_encoder(7, "error").prompt("a", words, 2)
    assert whole is not None and len(whole) == 5
    cut = make_encoder(7, "truncate_left").prompt("a", words, 4)
    assert cut == (1, *whole[-2:])
    dropping = make_encoder(7, "drop")
    assert dropping.prompt("a", words, 3) is None
    assert dropping.counts.dropped_ids == ["a"]
    with pytest.raises(ConfigError, match=r"row a exceeds the model's context of 7 tokens by 1"):
        make_encoder(7, "error").prompt("a", words, 3)


def test_a_response_that_alone_is_too_long_is_dropped_and_counted() -> None:
    encoder = make_encoder(4, "truncate_left")
    assert encoder.response("a", "w1 w2", " w3 w4 w5 w6") is None
    assert encoder.counts.dropped_ids == ["a"]


def test_an_overlong_row_is_named_with_its_excess() -> None:
    with pytest.raises(ConfigError, match=r"row a exceeds the model's context of 4 tokens by 2"):
        make_encoder(4, "error").response("a", "w1 w2", " w3 w4")


def test_nothing_left_is_an_error_that_says_how_many_were_dropped() -> None:
    row = Example(id="a", prompt="w1", chosen=" w2 w3 w4 w5")
    with pytest.raises(ConfigError, match="0 rows kept, 1 dropped"):
        make_encoder(4, "drop").examples([row])


def test_a_prompt_without_tokens_is_refused() -> None:
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.post_processor = None
    with pytest.raises(ConfigError, match="prompt of row a"):
        Encoder(tokenizer, 8, "error").prompt("a", " ", 1)
