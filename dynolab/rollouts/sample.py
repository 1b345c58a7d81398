"""Seeded sampling of responses from a causal language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dynolab.data.rows import spaced
from dynolab.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class SampleConfig(BaseModel):
    """How responses are drawn from a policy."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    temperature: float = Field(1.0, ge=0, description="0: the likeliest token every time.")
    max_new_tokens: int = Field(64, ge=1)
    batch_size: int = Field(64, ge=1, description="Prompts of one generation.")
    seed: int = Field(0, ge=0)


@dataclass(frozen=True)
class Sampled:
    """One sampled response: its text as rows hold it, and whether it ended by itself."""

    text: str
    finished: bool


def sample_responses(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    config: SampleConfig,
) -> list[Sampled]:
    """One response per prompt from the whole distribution (no top-k, no nucleus), in order.

    Prompts are encoded as training encodes them and padded on the left, with position ids that
    ignore the padding. Equal seeds give equal responses; the caller's random state and the
    model's mode are left as they were.

    **Raises:** `ConfigError` for a tokenizer without an end-of-sequence token.
    """
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            "model.tokenizer.eos_token", None, "name an end-of-sequence token in the tokenizer"
        )
    encoded = [_prompt_ids(tokenizer, prompt) for prompt in prompts]
    training = model.training
    model.eval()
    devices = [model.device] if model.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            torch.manual_seed(config.seed)
            return [
                sampled
                for start in range(0, len(encoded), config.batch_size)
                for sampled in _generate(
                    model, tokenizer, encoded[start : start + config.batch_size], config
                )
            ]
    finally:
        model.train(training)


def _generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[int]],
    config: SampleConfig,
) -> list[Sampled]:
    eos = int(tokenizer.eos_token_id)
    pad = eos if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
    ids, mask = _pad_left(prompts, pad)
    # With the end-of-sequence that encoding adds, a sampled answer still fits the context.
    room = int(model.config.max_position_embeddings) - ids.shape[1] - 1
    warm: dict[str, float] = {"temperature": config.temperature} if config.temperature else {}
    produced = model.generate(  # type: ignore[operator]
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device),
        position_ids=(mask.cumsum(1) - 1).clamp(min=0).to(model.device),
        do_sample=config.temperature > 0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=max(1, min(config.max_new_tokens, room)),
        eos_token_id=eos,
        pad_token_id=pad,
        **warm,
    )
    sampled = []
    for row in produced[:, ids.shape[1] :].tolist():
        finished = eos in row
        kept = row[: row.index(eos)] if finished else row
        text = str(tokenizer.decode(kept, skip_special_tokens=True))
        sampled.append(Sampled(spaced(text), finished))
    return sampled


def _prompt_ids(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    ids = list(tokenizer(prompt)["input_ids"])
    # Some tokenizers close every text; a closed prompt would be no prompt.
    return ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id else ids


def _pad_left(
    rows: Sequence[list[int]], pad: int
) -> tuple[Int[Tensor, "rows length"], Int[Tensor, "rows length"]]:
    length = max(map(len, rows))
    ids = torch.full((len(rows), length), pad, dtype=torch.long)
    mask = torch.zeros((len(rows), length), dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, length - len(row) :] = torch.tensor(row, dtype=torch.long)
        mask[number, length - len(row) :] = 1
    return ids, mask
