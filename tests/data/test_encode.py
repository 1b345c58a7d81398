"""Prompts and responses as tokens, and rows that exceed the context."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dynolab.data.encode import Encoder, Overlong
from dynolab.data.rows import Example
from dynolab.errors import ConfigError
from tests.training.small import make_tokenizer

LETTERS = {letter: number for number, letter in enumerate(["<end>", "▁", "\n", *"abcdefgh:"])}


def sentencepiece(merges: list[tuple[str, str]]) -> PreTrainedTokenizerFast:
    """As Llama's: a space is prepended to every text, and spaces are characters."""
    vocabulary = LETTERS | {a + b: len(LETTERS) + n for n, (a, b) in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def byte_level() -> PreTrainedTokenizerFast:
    """As Pythia's."""
    alphabet = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {byte: number for number, byte in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def response_tokens(tokenizer: PreTrainedTokenizerFast, response: str) -> list[str]:
    encoded = Encoder(tokenizer, 64, "error").response("one", "abc:", response)
    assert encoded is not None
    return tokenizer.convert_ids_to_tokens(list(encoded.ids[encoded.prompt_length :]))


def test_a_response_has_the_tokens_of_its_own_characters() -> None:
    assert response_tokens(sentencepiece([]), " ab a") == ["▁", "a", "b", "▁", "a", "<end>"]
    assert response_tokens(byte_level(), " ab") == ["Ġ", "a", "b", "<end>"]


def test_an_empty_response_is_the_end_alone() -> None:
    assert response_tokens(sentencepiece([]), "") == ["<end>"]
    assert response_tokens(byte_level(), "") == ["<end>"]


def test_a_response_begins_where_its_tokens_merge_with_the_prompt() -> None:
    merging = sentencepiece([(":", "▁")])
    assert response_tokens(merging, " ab") == [":▁", "a", "b", "<end>"]


def test_the_sides_of_a_pair_have_one_prompt() -> None:
    merging = sentencepiece([(":", "▁")])
    row = Example(id="one", prompt="abc:", chosen=" a", rejected="b")
    pair = Encoder(merging, 64, "error").example(row)
    assert pair is not None and pair.rejected is not None
    assert pair.chosen.prompt_length == pair.rejected.prompt_length == 4


def test_a_response_that_ends_gets_no_second_end() -> None:
    assert response_tokens(byte_level(), " ab<end>") == ["Ġ", "a", "b", "<end>"]


@pytest.mark.parametrize(
    ("overlong", "kept"),
    [("keep_start", "abc:_a"), ("keep_end", ":_ab<"), ("truncate_left", "c:_ab<")],
)
def test_what_a_rule_keeps_of_a_long_row(overlong: Overlong, kept: str) -> None:
    tokenizer = byte_level()
    one = Encoder(tokenizer, 5 + (overlong != "keep_end"), overlong).response("a", "abc:", " ab")
    assert one is not None
    text = "".join(tokenizer.convert_ids_to_tokens(list(one.ids)))
    assert text.replace("Ġ", "_").replace("<end>", "<") == kept
    assert one.prompt_length == kept.index("_")


@pytest.mark.parametrize(("room", "kept"), [(8, 1), (7, 0)])
def test_a_pair_is_dropped_where_either_side_exceeds_the_context(room: int, kept: int) -> None:
    encoder = Encoder(byte_level(), room, "drop")
    example = encoder.example(Example(id="one", prompt="abc:", chosen=" a", rejected=" ab"))
    assert (example is not None) == bool(kept)
    assert (encoder.counts.kept, encoder.counts.dropped) == (kept, 1 - kept)


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


def test_a_cut_prompt_is_cut_alike_for_all_its_responses() -> None:
    tokenizer = make_tokenizer()
    prompt, texts = " ".join(f"w{n}" for n in range(10)), [" w1 w2", " w3 w4 w5 w6 w7", " w1" * 30]
    cut = Encoder(tokenizer, 12, "truncate_left")
    short, long, none = cut.responses("a", prompt, texts)
    assert none is None
    assert short is not None and long is not None
    assert len(long.ids) == 12
    kept = long.ids[: long.prompt_length]
    assert short.ids[: short.prompt_length] == kept
    assert kept[0] == tokenizer.bos_token_id
    assert (cut.counts.kept, cut.counts.truncated, cut.counts.dropped) == (2, 2, 1)
    dropped = Encoder(tokenizer, 16, "drop").responses("a", prompt, texts)
    assert [one is None for one in dropped] == [False, True, True]
