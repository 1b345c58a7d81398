"""Responses to texts: one per prompt, for rows and for answers that are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dynolab.data.encode import cut_left, encode_prompt
from dynolab.data.rows import spaced
from dynolab.rollouts.decoding import ModelGenerator
from dynolab.rollouts.generator import SampleConfig, Sampled

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["SampleConfig", "Sampled", "sample_responses"]


def sample_responses(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    config: SampleConfig,
) -> list[Sampled]:
    """One response per prompt from the whole distribution (no top-k, no nucleus), in order.

    Prompts are encoded as training encodes them; one that fills the context loses its oldest
    tokens, as training's `truncate_left` cuts it. The responses' texts are as rows hold them.
    Equal seeds give equal responses.

    **Raises:** `ConfigError` for a tokenizer without an end-of-sequence token.
    """
    # With the end-of-sequence that encoding adds, a sampled answer still fits the context.
    context = int(model.config.max_position_embeddings) - 1
    generator = ModelGenerator(model, tokenizer, context)
    room = min(config.max_new_tokens, context // 2)
    encoded = [_fitting(tokenizer, prompt, context, room) for prompt in prompts]
    groups = generator.generate(encoded, config)
    return [replace(sample, text=spaced(sample.text)) for group in groups for sample in group]


def _fitting(
    tokenizer: PreTrainedTokenizerBase, prompt: str, context: int, room: int
) -> Sequence[int]:
    ids = encode_prompt(tokenizer, prompt)
    return ids if len(ids) < context else cut_left(tokenizer, ids, len(ids) + room - context)
