"""Pythia's shapes, randomly initialised, and the tokenizer of the family."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

SHAPE = {
    "vocab_size": 50_304,
    "hidden_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

PYTHIA_160M = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
PYTHIA_410M = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
"""What these shapes change of the 70m one's."""


def pythia(**changes: int) -> GPTNeoXForCausalLM:
    """The 70m shape with these sizes changed; equal sizes give equal weights."""
    torch.manual_seed(0)
    return GPTNeoXForCausalLM(GPTNeoXConfig(**SHAPE | changes))


def pythia_tokenizer() -> PreTrainedTokenizerFast:
    """From `models/pythia-tokenizer` of DYNOLAB_TEST_DATA."""
    file = Path(os.environ["DYNOLAB_TEST_DATA"], "models", "pythia-tokenizer", "tokenizer.json")
    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token=end, pad_token=end)
