"""The texts of single tokens, as a person reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynolab.data.encode import Encoded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def token_strings(encoded: Encoded, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The texts of a response's tokens, as a person reads them."""
    return [token_string(token, tokenizer) for token in encoded.ids[encoded.prompt_length :]]


def token_string(token: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """A token's text: with the space that sentencepiece drops at a text's start, and as the
    vocabulary writes it where it is a part of a character.
    """
    text, piece = str(tokenizer.decode([token])), str(tokenizer.convert_ids_to_tokens(token))
    if token in tokenizer.all_special_ids:
        return text
    if "\ufffd" in text:
        return piece
    return f" {text}" if piece.startswith("▁") and not text.startswith(" ") else text
