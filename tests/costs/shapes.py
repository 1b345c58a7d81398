"""Small models of two families, by their number of layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import GPTNeoXConfig, LlamaConfig, PreTrainedModel

from models.unloaded import builder

NEOX = GPTNeoXConfig(
    vocab_size=700,
    hidden_size=64,
    num_hidden_layers=6,
    num_attention_heads=4,
    intermediate_size=256,
    max_position_embeddings=128,
    tie_word_embeddings=False,
)
LLAMA = LlamaConfig(
    vocab_size=500,
    hidden_size=48,
    num_hidden_layers=6,
    num_attention_heads=6,
    num_key_value_heads=2,
    intermediate_size=160,
    max_position_embeddings=128,
)
BUILD: dict[str, Callable[[int, torch.dtype], PreTrainedModel]] = {
    "neox": builder(NEOX),
    "llama": builder(LLAMA),
}
