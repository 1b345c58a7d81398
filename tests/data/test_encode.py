"""Responses encoded apart from their prompts, with tokenizers of both families."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dynolab.data.encode import Encoder, Overlong
from dynolab.data.rows import Example

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
