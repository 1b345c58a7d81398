"""Samples one response per text prompt, for probe rows and pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dynolab.data.encode import cut_left, encode_prompt
from dynolab.data.rows import Turn
from dynolab.rollouts.decoding import ModelGenerator
from dynolab.rollouts.generator import SampleConfig, Sampled

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def sample_responses(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    config: SampleConfig,
    turns: Sequence[Turn | None] | None = None,
) -> list[Sampled]:
    """Samples one response per prompt, in order, from the full distribution (no top-k, no nucleus).

    Prompts are encoded as for training; one that fills the context loses its oldest tokens, as
    under `truncate_left`. The responses' texts go on where their prompts end, with the blank that
    may stand there. Equal seeds give equal responses.

    **Arguments:** `turns`: those of the prompts' rows; by default prompts are plain texts.

    **Raises:** `ConfigError` for a tokenizer without an end-of-sequence token.
    """
    # Leaves room for the end-of-sequence that encoding adds to a sampled answer.
    context = int(model.config.max_position_embeddings) - 1
    generator = ModelGenerator(model, tokenizer, context)
    room = min(config.max_new_tokens, context // 2)
    asked = list(zip(prompts, turns or [None] * len(prompts), strict=True))
    encoded = [
        ids
        if len(ids := encode_prompt(tokenizer, prompt, turn)) < context
        else cut_left(tokenizer, ids, len(ids) + room - context)
        for prompt, turn in asked
    ]
    return [
        _continued(tokenizer, sample, turn)
        for (_, turn), group in zip(asked, generator.generate(encoded, config), strict=True)
        for sample in group
    ]


def _continued(tokenizer: PreTrainedTokenizerBase, sample: Sampled, turn: Turn | None) -> Sampled:
    """A response whose text begins with the blank that its first token stands for.

    It ends with its turn, whose end may be another token than end-of-sequence.
    """
    ids, length = list(sample.encoded.ids), sample.encoded.prompt_length
    ends = tokenizer(turn[1].strip(), add_special_tokens=False)["input_ids"] if turn else []
    if ends and ends[0] in ids[length:]:
        ids = ids[: ids.index(ends[0], length)]
        text = str(tokenizer.decode(ids[length:], skip_special_tokens=True))
        sample = replace(sample, text=text, finished=True)
    before, after = (
        str(tokenizer.decode(part, skip_special_tokens=True)) for part in (ids[:length], ids)
    )
    start = after.find(sample.text, len(before)) if after.startswith(before) else -1
    return sample if start < 0 else replace(sample, text=after[len(before) : start] + sample.text)
