"""Samples one response per text prompt, for probe rows and pages."""

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
    """Samples one response per prompt, in order, from the full distribution (no top-k, no nucleus).

    Prompts are encoded as for training; one that fills the context loses its oldest tokens, as
    under `truncate_left`. The responses' texts have the leading space of rows' answers. Equal
    seeds give equal responses.

    **Raises:** `ConfigError` for a tokenizer without an end-of-sequence token.
    """
    # Leaves room for the end-of-sequence that encoding adds to a sampled answer.
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
