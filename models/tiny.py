"""The built-in language model: a tiny GPT-NeoX that trains in seconds on one core."""

from __future__ import annotations

import torch
from pydantic import BaseModel, ConfigDict, Field
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerBase


class TinyConfig(BaseModel):
    """Shape and seed of the tiny model; the default has 0.6 million parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    seed: int = Field(0, ge=0)
    layers: int = Field(3, ge=1)
    width: int = Field(128, ge=8, multiple_of=8)
    heads: int = Field(4, ge=1)
    context: int = Field(64, ge=8)


def build_tiny(
    config: TinyConfig,
    tokenizer: PreTrainedTokenizerBase,
    attention: str = "sdpa",
) -> GPTNeoXForCausalLM:
    """A GPT-NeoX with seeded random weights, no dropout, and the tokenizer's vocabulary.

    The caller's random state is left as it was.
    """
    shape = GPTNeoXConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=4 * config.width,
        max_position_embeddings=config.context,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = GPTNeoXForCausalLM(shape)
    model.set_attn_implementation(attention)
    return model.eval()
