"""Responses encoded apart from their prompts, with tokenizers of both families."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dynolab.data.encode import Encoder
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


def test_a_response_whose_start_merges_with_a_line_break_is_encoded_alone() -> None:
    merging = sentencepiece([("\n", "▁")])
    assert response_tokens(merging, " ab") == ["▁", "▁", "a", "b", "<end>"]


@pytest.mark.parametrize(("room", "kept"), [(8, 1), (7, 0)])
def test_a_pair_is_dropped_where_either_side_exceeds_the_context(room: int, kept: int) -> None:
    encoder = Encoder(byte_level(), room, "drop")
    example = encoder.example(Example(id="one", prompt="abc:", chosen=" a", rejected=" ab"))
    assert (example is not None) == bool(kept)
    assert (encoder.counts.kept, encoder.counts.dropped) == (kept, 1 - kept)
