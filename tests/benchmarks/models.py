"""Random models that are measured: families of transformers at toy size, and Pythia's shapes; the
tokenizer of Pythia's family, and random pairs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from dynolab.data.rows import Example
from tests.benchmarks.figures import real_inputs

VOCABULARY = 50
_TOKENS = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_LLAMA = {
    **_TOKENS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.15,
}
_GROUPED = {**_LLAMA, "num_key_value_heads": 2}
_GPT = {
    **_TOKENS,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "initializer_range": 0.15,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_MAMBA = {**_TOKENS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _GROUPED),
    "llama_tied": ("llama", {**_GROUPED, "tie_word_embeddings": True}),
    "gpt2": ("gpt2", _GPT),
    "gpt_neox": ("gpt_neox", _LLAMA),
    "mistral_window": ("mistral", {**_GROUPED, "sliding_window": 4}),
    "qwen2": ("qwen2", _GROUPED),
    "qwen3": ("qwen3", {**_GROUPED, "head_dim": 8}),
    "phi": ("phi", _LLAMA),
    "phi3": ("phi3", _GROUPED),
    "olmo2": ("olmo2", _GROUPED),
    "opt": (
        "opt",
        {
            **_TOKENS,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 64,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 16,
            "init_std": 0.15,
        },
    ),
    "falcon": ("falcon", {k: v for k, v in _LLAMA.items() if k != "intermediate_size"}),
    "gpt_neo": (
        "gpt_neo",
        {
            **_TOKENS,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "window_size": 4,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 64,
            "initializer_range": 0.15,
        },
    ),
    "gptj": ("gptj", {**_GPT, "rotary_dim": 4}),
    "smollm3": ("smollm3", _GROUPED),
    "stablelm": ("stablelm", _GROUPED),
    "starcoder2": ("starcoder2", _GROUPED),
    "mpt": (
        "mpt",
        {
            **_TOKENS,
            "d_model": 32,
            "n_layers": 2,
            "n_heads": 4,
            "expansion_ratio": 2,
            "max_seq_len": 64,
            "initializer_range": 0.15,
        },
    ),
    "bloom": (
        "bloom",
        {**_TOKENS, "hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.15},
    ),
    "cohere": ("cohere", {**_GROUPED, "logit_scale": 0.0625}),
    "cohere2": ("cohere2", {**_GROUPED, "head_dim": 8, "sliding_window": 4}),
    "granite": ("granite", {**_GROUPED, "logits_scaling": 8.0, "embedding_multiplier": 2.0}),
    "gemma": ("gemma", {**_GROUPED, "head_dim": 8}),
    "gemma2": (
        "gemma2",
        {
            **_GROUPED,
            "head_dim": 8,
            "sliding_window": 4,
            "final_logit_softcapping": 3.0,
            "attn_logit_softcapping": 5.0,
            "query_pre_attn_scalar": 8,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {**_GROUPED, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8},
    ),
    "mixtral": ("mixtral", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": ("qwen2_moe", {**_GROUPED, **_EXPERTS, "shared_expert_intermediate_size": 32}),
    "qwen3_moe": ("qwen3_moe", {**_GROUPED, **_EXPERTS, "head_dim": 8}),
    "rwkv": (
        "rwkv",
        {**_TOKENS, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 64},
    ),
    "mamba": ("mamba", _MAMBA),
    "mamba2": (
        "mamba2",
        {**_MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 4},
    ),
    "recurrent_gemma": (
        "recurrent_gemma",
        {
            **_TOKENS,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "intermediate_size": 64,
            "lru_width": 32,
            "attention_window_size": 8,
            "logits_soft_cap": 3.0,
        },
    ),
    "falcon_h1": (
        "falcon_h1",
        {
            **_GROUPED,
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_d_state": 4,
            "mamba_chunk_size": 4,
            "lm_head_multiplier": 0.5,
        },
    ),
    "zamba2": (  # two of its layers share a block's weights
        "zamba2",
        {
            **_TOKENS,
            "hidden_size": 32,
            "num_hidden_layers": 4,
            "hybrid_layer_ids": [1, 3],
            "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
            "num_mem_blocks": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "attention_head_dim": 16,
            "intermediate_size": 64,
            "adapter_rank": 4,
            "mamba_d_state": 8,
            "mamba_headdim": 16,
            "n_mamba_heads": 4,
            "chunk_size": 4,
            "max_position_embeddings": 64,
            "initializer_range": 0.15,
        },
    ),
    "modernbert_decoder": ("modernbert-decoder", {**_LLAMA, "local_attention": 4}),
    "bert": ("bert", _LLAMA),
}

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


def build(name: str) -> PreTrainedModel:
    """A family's model, in float32."""
    torch.manual_seed(0)
    kind, settings = FAMILIES[name]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings))
    return model.eval()


def pythia(**changes: int) -> GPTNeoXForCausalLM:
    """The 70m shape with these sizes changed; equal sizes give equal weights."""
    torch.manual_seed(0)
    return GPTNeoXForCausalLM(GPTNeoXConfig(**SHAPE | changes))


def pythia_tokenizer() -> PreTrainedTokenizerFast:
    """From `models/pythia-tokenizer` of DYNOLAB_TEST_DATA."""
    (file,) = real_inputs("models/pythia-tokenizer/tokenizer.json")
    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token=end, pad_token=end)


def random_tokens(count: int, seed: int) -> tuple[int, ...]:
    """Tokens of the families' vocabulary, no special ones."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, VOCABULARY, (count,), generator=generator).tolist())


def random_pairs(words: Sequence[str], lengths: tuple[int, int, int], count: int) -> list[Example]:
    """Pairs of random words.

    **Arguments:** `lengths`: words of prompts, of chosen and of rejected answers.
    """
    source = random.Random(0)
    texts = [["".join(source.choices(words, k=length)) for length in lengths] for _ in range(count)]
    return [Example(id=str(n), prompt=p, chosen=c, rejected=r) for n, (p, c, r) in enumerate(texts)]
